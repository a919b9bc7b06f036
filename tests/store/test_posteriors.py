"""Posteriors and integrations come back to the last bit, and only as what they are of."""

import json

import pytest
import torch

from ldaf_bench.artifacts import ArtifactError
from ldaf_bench.store.folder import Folder
from ldaf_bench.store.posteriors import (
    VALUES,
    Posterior,
    integration_path,
    load_integration,
    load_posterior,
    load_search,
    posterior_path,
    save_integration,
    save_posterior,
    save_search,
    search_path,
)
from ldaf_bench.theory.gaussian import Dense, from_tensors
from ldaf_bench.theory.integrate import INTEGRATORS, integrate
from tests.cases import few_points_for, gaussian, logits_problem, with_draws

every_integrator = pytest.mark.parametrize("entry", INTEGRATORS.values(), ids=list(INTEGRATORS))


def integrated(entry, seed=1):
    return integrate(entry.name, with_draws(logits_problem(40, 4, seed, scale=0.5)), num_points=few_points_for(entry))


@every_integrator
def test_an_integration_comes_back_to_the_last_bit_with_its_guarantee(tmp_path, entry):
    made = integrated(entry)
    save_integration(Folder(tmp_path), "name", "source", "posterior", made, {"integrate_seconds": 0.1})
    found, record = load_integration(tmp_path / integration_path("name"), "source")
    assert torch.equal(found.per_datum, made.per_datum)
    assert (found.draws is None) == (made.draws is None)
    assert made.draws is None or torch.equal(found.draws, made.draws)
    assert (found.standard_error, found.num_evaluations) == (made.standard_error, made.num_evaluations)
    assert (record["posterior"], record["about"]) == ("posterior", {"integrate_seconds": 0.1})
    if entry.certifies:
        assert [entry.upper(found, delta) for delta in (0.1, 0.001)] == [
            entry.upper(made, delta) for delta in (0.1, 0.001)
        ]


def test_an_integration_of_the_same_posterior_is_left_alone_and_one_of_another_is_replaced(tmp_path):
    mc = INTEGRATORS["mc"]
    path = tmp_path / integration_path("name")
    save_integration(Folder(tmp_path), "name", "source", "one", integrated(mc, seed=1), {})
    before = (path / VALUES).read_bytes()
    save_integration(Folder(tmp_path), "name", "source", "one", integrated(mc, seed=2), {})
    assert (path / VALUES).read_bytes() == before
    save_integration(Folder(tmp_path), "name", "source", "another", integrated(mc, seed=2), {})
    assert torch.equal(load_integration(path, "source").integration.per_datum, integrated(mc, seed=2).per_datum)


@pytest.mark.parametrize("unfitted", [True, False])
@pytest.mark.parametrize("family", ["rank one", "dense"])
def test_a_posterior_comes_back_to_the_last_bit(tmp_path, family, unfitted):
    prior, posterior = gaussian(6, seed=1), gaussian(6, seed=2)
    if family == "dense":
        prior, posterior = Dense(prior.factor()), Dense(posterior.factor())
    made = Posterior(prior, prior if unfitted else posterior, {"kl_divergence": 0.5}, [{"x": 0.0, "bound": 0.3}])
    save_posterior(Folder(tmp_path), "name", {"seed": 1}, "source", made)
    found = load_posterior(tmp_path / posterior_path("name"), "source", from_tensors)
    assert found.hash == made.hash
    for one, other in ((found.prior, made.prior), (found.distribution, made.distribution)):
        assert type(one) is type(other)
        assert torch.equal(one.factor(), other.factor())
    assert (found.about, found.history) == (made.about, made.history)


def test_the_hash_of_a_posterior_is_that_of_all_its_numbers():
    prior, posterior = gaussian(6, seed=1), gaussian(6, seed=2)
    hashes = {
        Posterior(*pair, {}).hash
        for pair in ((prior, posterior), (posterior, prior), (prior, prior), (posterior, posterior))
    }
    assert len(hashes) == 4


def test_what_rests_on_other_digests_or_has_another_name_is_refused(tmp_path):
    made = Posterior(gaussian(6, seed=1), gaussian(6, seed=2), {})
    save_posterior(Folder(tmp_path), "name", {}, "source", made)
    save_integration(Folder(tmp_path), "name", "source", made.hash, integrated(INTEGRATORS["mc"]), {})
    for path, load in (
        (tmp_path / posterior_path("name"), lambda path, source: load_posterior(path, source, from_tensors)),
        (tmp_path / integration_path("name"), load_integration),
    ):
        load(path, "source")
        with pytest.raises(ArtifactError, match="other digests"):
            load(path, "another")
        path.rename(path.with_name("other"))
        with pytest.raises(ArtifactError, match="than its name says"):
            load(path.with_name("other"), "source")


def test_a_search_is_remembered_under_the_name_of_its_plan(tmp_path):
    save_search(Folder(tmp_path), "plan", {"b", "a"})
    path = tmp_path / search_path("plan")
    assert load_search(path) == {"a", "b"}
    assert json.loads((path / "about.json").read_text())["tried"] == ["a", "b"]
    path.rename(path.with_name("other"))
    with pytest.raises(ArtifactError, match="than its name says"):
        load_search(path.with_name("other"))
