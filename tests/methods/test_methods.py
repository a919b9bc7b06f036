"""Every entry of METHODS keeps the promises of the seam; a new method is tested by being there."""

import json
import os
import subprocess
import sys

import pytest
import torch
from pydantic import ValidationError

from ldaf_bench.columns import Column
from ldaf_bench.methods import METHODS
from ldaf_bench.methods.method import UNFITTED
from ldaf_bench.results.record import ARROW, record_columns
from ldaf_bench.sections import columns_of
from ldaf_bench.stages.digest import digest_images
from ldaf_bench.store.digests import OWN
from ldaf_bench.suite import Suite
from ldaf_bench.theory.integrate import INTEGRATORS, integrate
from tests.cases import few_points_for
from tests.networks import QUICK, config_for, data_of, digits_splits, trained

every_method = pytest.mark.parametrize("method", METHODS.values(), ids=list(METHODS))
stochastic = pytest.mark.parametrize(
    "case", [name for name, method in METHODS.items() if method.prior], indirect=True, ids=str
)
every_case = pytest.mark.parametrize("case", METHODS, indirect=True)


class Case:
    """A method on a small trained network, with some images of each part."""

    def __init__(self, method, store):
        self.method = method
        self.network = trained(store, config_for(method.name))
        self.spec = method.digest_axes()
        dataset, splits = digits_splits()
        self.images = torch.from_numpy(dataset.images[splits.certificate[:120]])
        self.data, self.prior_data = (data_of(self.network, method.name, part) for part in ("certificate", "prior"))

    def digest(self, images):
        return digest_images(self.method, self.spec, self.network.model(), images)

    def prior(self, spec=None, seed=0):
        spec = self.method.prior_axes() if spec is None else spec
        some = self.prior_data if self.method.needs_prior_data(spec) else None
        return self.method.prior(spec, self.network, some, seed)

    def fit_spec(self, objective):
        fields = self.method.fit_axes.model_fields
        quick = {name: value for name, value in QUICK.items() if name in fields}
        return self.method.fit_axes(**quick, objective=objective)

    def objectives(self):
        (objective,) = (c for c in columns_of(self.method.fit_axes, "methods.*") if c.name == "objective")
        return objective.names()

    def fits(self):
        """A fit for each objective, with what it told those who watch."""
        prior = self.prior()
        for objective in self.objectives():
            spec, seen = self.fit_spec(objective), []
            if spec.fitted:
                yield prior, self.method.fit(spec, prior, self.data, 0, seen.append), seen


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    made = {}

    def case(name):
        if name not in made:
            made[name] = Case(METHODS[name], tmp_path_factory.mktemp(name))
        return made[name]

    return case


@pytest.fixture
def case(cases, request):
    return cases(request.param)


def points(spec):
    """The defaults, and every name of every field that holds names."""
    yield spec()
    for column in columns_of(spec, "methods.*"):
        yield from (spec(**{column.name: name}) for name in column.names())


# What it says about itself.


@every_method
def test_it_has_a_distribution_with_all_that_belongs_to_it_or_none(method):
    assert METHODS[method.name] is method
    has_prior = method.prior is not None
    assert has_prior == (method.problem is not None) == (method.restore is not None) == bool(method.offers)
    assert has_prior or method.fit is None
    assert has_prior or method.logits is not None, "There is nothing to certify."


@every_method
def test_its_axes_are_well_formed(method):
    fields = [name for spec in method.specs for name in spec.model_fields]
    assert len(set(fields)) == len(fields), "Two of its sections have an axis of the same name."
    for spec in method.specs:
        for name, info in spec.model_fields.items():
            assert info.description, f"{name} needs a docstring."
            assert not info.is_required(), f"{name} needs a default: a suite may list the method with {{}}."
    assert list(method.axes().model_dump()) == fields
    assert all(len(values) == 1 for name, values in method.axes() if name != "also")
    assert method.axes(**{name: values for name, values in method.axes() if name != "also"}) == method.axes()
    assert method.refusal(method.axes(), 10) == ("", "")


@every_method
def test_points_of_its_axes_are_named_by_what_has_an_effect(method):
    for spec in method.specs:
        for point in points(spec):
            used = point.used()
            assert json.loads(json.dumps(used)) == used
            assert set(used) | point.unused() == set(spec.model_fields)
            assert spec(**used).used() == used


@pytest.mark.parametrize("method", [method for method in METHODS.values() if method.prior], ids=lambda m: m.name)
def test_objectives_are_those_it_lists_and_no_others(method):
    (objective,) = (column for column in columns_of(method.fit_axes, "methods.*") if column.name == "objective")
    assert UNFITTED in objective.names(), "A Literal that has `unfitted` among its values."
    assert (set(objective.names()) != {UNFITTED}) == (method.fit is not None)
    with pytest.raises(ValidationError):
        method.fit_axes(objective="nonsense")


def test_every_axis_and_outcome_has_a_column_of_one_type_that_methods_share():
    shared: dict[str, Column] = {}
    for method in METHODS.values():
        for column in method.columns():
            other = shared.setdefault(column.name, column)
            assert (other.kind, other.axis, other.heading) == (column.kind, column.axis, column.heading), column.name
            assert column.kind in ARROW
        assert {column.name for column in method.columns()} >= set(method.axes.model_fields) - {"also"}
    names = [column.name for column in record_columns()]
    assert len(set(names)) == len(names), "An axis has the name of a column that all methods have."
    assert shared.keys() <= set(names)


@every_method
def test_a_suite_may_list_it_alone(method):
    content = {
        "suite": "alone",
        "data": {"dataset": "digits"},
        "networks": {"backbone": "tinynet", "recipe": "tiny"},
        "methods": {method.name: {}},
        "certificates": {"bound": "kl" if method.prior else "test_set"},
    }
    assert Suite.model_validate(content).methods[method.name] == method.axes()


# What it computes.


@every_case
def test_a_digest_has_one_row_per_datum_whatever_the_batch(case):
    images = case.images
    whole = case.data.digest
    assert whole
    assert not set(whole) & set(OWN), "These arrays are the digest's own."
    halves = [case.digest(images[:50]), case.digest(images[50:])]
    for name, tensor in whole.items():
        assert len(tensor) == len(images), name
        assert torch.isfinite(tensor).all(), name
        assert not tensor.requires_grad, name
        joined = torch.cat([half[name] for half in halves])
        torch.testing.assert_close(joined, tensor, rtol=1e-4, atol=1e-5)


@every_case
def test_the_mean_classifier_is_the_network(case):
    if case.method.logits is None:
        return
    logits = case.method.logits(case.data.digest)
    assert logits.shape == (120, 10)
    with torch.no_grad():
        torch.testing.assert_close(logits, case.network.model()(case.images), rtol=1e-4, atol=1e-4)


@stochastic
def test_a_prior_is_made_by_its_seed_and_comes_back_from_its_tensors(case):
    for spec in points(case.method.prior_axes):
        one, again = case.prior(spec), case.prior(spec)
        restored = case.method.restore(one.tensors())
        for other in (again, restored):
            assert other.tensors().keys() == one.tensors().keys()
            assert all(torch.equal(other.tensors()[name], tensor) for name, tensor in one.tensors().items())
        assert 0 <= one.kl_from(restored) < 1e-9
        assert one.kl_from(case.prior(spec, seed=1)) >= 0


@stochastic
def test_a_fitted_posterior_is_a_distribution_with_a_divergence_that_comes_back(case):
    for prior, fitted, seen in case.fits():
        posterior = fitted.distribution
        restored = case.method.restore(posterior.tensors())
        assert 0 <= posterior.kl_from(posterior) < 1e-9
        assert posterior.kl_from(prior) == restored.kl_from(prior) > 1e-9
        assert 0 <= restored.kl_from(posterior) < 1e-9
        assert seen
        assert min(seen) < seen[0], "The objective never fell."


@stochastic
def test_what_there_is_to_say_about_a_fit_has_columns_and_curves(case):
    kinds = {column.name: column.kind for column in case.method.outcomes}
    for _, fitted, _ in case.fits():
        assert fitted.outcome.keys() == kinds.keys()
        for name, value in fitted.outcome.items():
            assert type(value) is kinds[name], name
        assert fitted.history
        for step in fitted.history:
            assert {"x", "seconds"} < step.keys() == fitted.history[0].keys()
            json.dumps(step, allow_nan=False)


@stochastic
def test_a_fit_is_reproducible(case):
    for (_, one, _), (_, again, _) in zip(case.fits(), case.fits(), strict=True):
        for name, tensor in one.distribution.tensors().items():
            assert torch.equal(again.distribution.tensors()[name], tensor), name


@stochastic
def test_its_problem_offers_what_it_says_and_every_integrator_that_needs_no_more_runs(case):
    for distribution in [case.prior(), *(fitted.distribution for _, fitted, _ in case.fits())]:
        problem = case.method.problem(case.spec, distribution, case.data)
        assert problem.offers == case.method.offers
        assert (problem.num_data, problem.num_classes) == (120, 10)
        ran = [entry for entry in INTEGRATORS.values() if entry.needs in case.method.offers]
        assert any(entry.certifies for entry in ran)
        for entry in ran:
            found = integrate(entry.name, problem, num_points=few_points_for(entry))
            assert found.per_datum.shape == (120,)
            assert ((found.per_datum >= 0) & (found.per_datum <= 1)).all()
            if entry.certifies:
                assert float(found.value) <= entry.upper(found, 0.05) <= 1


@stochastic
def test_whatever_its_problem_offers_is_the_same_distribution(case):
    problem = case.method.problem(case.spec, case.prior(), case.data)
    truth = None
    for entry in INTEGRATORS.values():
        if entry.costs_delta and entry.needs in case.method.offers:
            found = integrate(entry.name, problem, num_points=64)
            truth = truth or found
            slack = 5 * (found.standard_error + truth.standard_error)
            assert abs(float(found.value - truth.value)) <= slack, entry.name


PLUGIN = """
from dataclasses import replace
from ldaf_bench.methods import METHODS
METHODS["mine"] = replace(METHODS["deterministic"], name="mine")
"""


def test_methods_of_ones_own_are_named_by_an_environment_variable(tmp_path):
    (tmp_path / "my_methods.py").write_text(PLUGIN)
    code = (
        "from ldaf_bench.suite import Suite\n"
        "print(sorted(Suite.model_json_schema()['properties']['methods']['properties']))"
    )
    environment = {**os.environ, "LDAF_BENCH_PLUGINS": "my_methods", "PYTHONPATH": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(sorted([*METHODS, "mine"]))
