"""Fitting and integrating one posterior, for every method that has some: no Ray, no files."""

import dataclasses

import pytest
import torch

from ldaf_bench.columns import Column
from ldaf_bench.methods import METHODS
from ldaf_bench.results.record import columns_by_name
from ldaf_bench.stages.fit import convergence, fit_posterior, integrate_posterior
from ldaf_bench.suite import Convergence
from ldaf_bench.theory.integrate import INTEGRATORS, integrate
from tests.networks import QUICK, config_for, data_of, plan_for, trained

STOCHASTIC = [name for name, method in METHODS.items() if method.prior]


class Case:
    """A method's posteriors, one for each of its objectives, with data to fit and to test them on."""

    def __init__(self, name, store):
        method = METHODS[name]
        axes = {axis: value for axis, value in QUICK.items() if axis in method.fit_axes.model_fields}
        (objective,) = (column for column in method.columns() if column.name == "objective")
        self.plan = plan_for(name, axes={**axes, "objective": list(objective.names())})
        network = trained(store, config_for(name))
        assert network.identity == self.plan.networks[0].identity
        self.certificate, self.test, self.prior = (
            data_of(network, name, part) for part in ("certificate", "test", "prior")
        )

    def fit(self, planned, certificate=None):
        some = self.prior if planned.digest.entry.needs_prior_data(planned.prior) else None
        return fit_posterior(planned, certificate or self.certificate, self.test, some)


@pytest.fixture(scope="module", params=STOCHASTIC)
def case(request, tmp_path_factory):
    return Case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def fits(case):
    return [(planned, case.fit(planned)) for planned in case.plan.posteriors]


def test_all_that_is_said_about_a_posterior_has_a_column_of_its_type(fits):
    columns = columns_by_name()
    for _, posterior in fits:
        for name, value in posterior.about.items():
            column: Column = columns[name]
            assert type(value) is column.kind, name


def test_an_unfitted_posterior_is_its_prior_and_a_fitted_one_is_not(fits):
    for planned, posterior in fits:
        same = posterior.distribution is posterior.prior
        assert same == (not planned.fit.fitted) == (planned.classifier == "prior")
        assert (posterior.about["kl_divergence"] == 0) == same
        assert posterior.about["kl_divergence"] == pytest.approx(
            posterior.distribution.kl_from(posterior.prior), abs=1e-9
        )
        assert bool(posterior.history) == planned.fit.fitted
        # The prior is the same, however it goes on from there.
        tensors = fits[0][1].prior.tensors()
        assert all(torch.equal(posterior.prior.tensors()[name], tensor) for name, tensor in tensors.items())


def test_a_prior_does_not_depend_on_certificate_data(case, fits):
    other = case.certificate._replace(labels=case.certificate.labels.flip(0))
    for planned, posterior in fits:
        again = case.fit(planned, other).prior.tensors()
        assert all(torch.equal(again[name], tensor) for name, tensor in posterior.prior.tensors().items())


def test_integrations_are_those_of_the_posterior_by_its_own_seed(case, fits):
    by_name = {planned.identity: posterior for planned, posterior in fits}
    for asked in case.plan.integrations:
        posterior = by_name[asked.posterior.identity]
        found, about = integrate_posterior(asked, posterior, case.certificate)
        digest = asked.posterior.digest
        problem = digest.entry.problem(digest.digest_spec, posterior.distribution, case.certificate)
        again = integrate(asked.integrator, problem, num_points=asked.num_points, seed=asked.posterior.seed)
        assert torch.equal(found.per_datum, again.per_datum)
        assert about.keys() <= columns_by_name().keys()
        assert about["integrate_seconds"] > 0
        reseeded = dataclasses.replace(asked, posterior=dataclasses.replace(asked.posterior, seed=7))
        other, _ = integrate_posterior(reseeded, posterior, case.certificate)
        assert not torch.equal(found.per_datum, other.per_datum)


def test_convergence_is_shown_for_the_integrators_that_the_method_has_something_for(case, fits):
    planned, posterior = fits[0]
    converging = [name for name, entry in INTEGRATORS.items() if entry.least_points]
    asked = Convergence(integrator=converging, num_points=[8, 128], repeats=4, reference_points=512)
    rows = convergence(planned, posterior, case.certificate, asked)
    offered = [name for name in converging if INTEGRATORS[name].needs in planned.digest.entry.offers]
    assert [row["series"] for row in rows] == ["reference", *(name for name in offered for _ in range(2))]
    for row in rows:
        assert 0 <= row["low"] <= row["y"] <= row["high"]
    curves = {name: [row["y"] for row in rows if row["series"] == name] for name in offered}
    assert sum(last < first for first, last in curves.values()) >= len(curves) - 1


def test_the_risks_of_some_data_are_compared_one_by_one(case, fits):
    """Errors of single data do not average out, so they are larger than that of the whole part."""
    planned, posterior = fits[0]
    (offered, *_) = [name for name, entry in INTEGRATORS.items() if entry.least_points and entry.certifies
                     and entry.needs in planned.digest.entry.offers]  # fmt: skip
    asked = {"integrator": [offered], "num_points": [16], "repeats": 4, "reference_points": 512}
    whole = convergence(planned, posterior, case.certificate, Convergence(**asked))
    each = convergence(planned, posterior, case.certificate, Convergence(**asked, num_data=50))
    assert each[1]["y"] > 2 * whole[1]["y"]
    assert each[1]["y"] == pytest.approx(each[0]["y"] * (512 / 16) ** 0.5, rel=0.5)  # both are plain Monte Carlo
