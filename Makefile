# Everything runs from the virtual environment in .venv, made from the lock; nothing else is installed.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install token run test test-cluster check verify verify-headline schema selfcheck simulate speed lock clean

help:  ## What there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

install: .venv/.installed  ## Make the virtual environment from the lock

# pip's own output, warnings of the machine's settings included, goes to a log that is shown if a step fails.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOGGED = >> .venv/install.log 2>&1 || { tail -n 30 .venv/install.log; exit 1; }

.venv/.installed: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Python 3.11 or newer is needed; say which one with make PYTHON=…'; exit 1; }
	@echo 'Installing, 1 of 3: the virtual environment .venv'
	@$(PYTHON) -m venv .venv
	@echo 'Installing, 2 of 3: the packages of requirements.lock (several gigabytes, about three minutes)'
	@$(PIP) -r requirements.lock $(LOGGED)
	@echo 'Installing, 3 of 3: ldaf_bench itself'
	@$(PIP) --no-deps --no-build-isolation -e . $(LOGGED)
	@touch $@

# Ray writes the file so that everybody on the machine can read it.
token: install  ## Make the secret that every machine of a cluster must know, ~/.ray/auth_token, unless it is there
	@mkdir -p -m 700 ~/.ray && $(BIN)/ray get-auth-token --generate > /dev/null && chmod 600 ~/.ray/auth_token
	@echo 'The token is in ~/.ray/auth_token.'

run: install  ## The main job on the embedded digits: networks, posteriors, certificates, report; minutes on two cores
	$(BIN)/python -m ldaf_bench.run suites/digits.yaml
	@echo 'Open results/digits/report.html in a browser.'

verify: install  ## Check the certificates of `make run` again, from the stored artifacts alone
	$(BIN)/python -m ldaf_bench.verify results/digits

verify-headline: install  ## Check the archives in results/published, from weights and data; a quarter of an hour
	$(BIN)/python -m ldaf_bench.data cifar10 --root data
	$(BIN)/python -m ldaf_bench.data fashionmnist --root data
	@for archive in results/published/*.tar; do \
		echo "Verifying $$archive"; $(BIN)/python -m ldaf_bench.verify "$$archive" --root data || exit 1; \
	done

schema: install  ## Write the JSON Schema of suite files, for editors
	$(BIN)/python -c 'import json; from ldaf_bench.suite import Suite; print(json.dumps(Suite.model_json_schema(), indent=1))' > suites/schema.json

check: install  ## Lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: check  ## All of `check`, then all tests
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

test-cluster: install  ## The README's cluster section on three hosts made of namespaces; needs root, under ten minutes
	$(BIN)/python -m tests.cluster

selfcheck: install  ## Does this machine compute what it should?
	$(BIN)/python -m tools.selfcheck

simulate: install  ## Do the certificates hold? every honest way and every classic mistake; about half an hour on two cores
	$(BIN)/python -m tools.simulate

speed: install  ## How fast is it here? About ten minutes on two idle cores
	$(BIN)/python -m tools.speed

lock: install  ## Resolve the ranges of pyproject.toml anew
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header --quiet --upgrade --output-file requirements.lock

clean:  ## Remove the environment and all caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
