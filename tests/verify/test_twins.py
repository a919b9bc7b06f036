"""Every bound and what it is evaluated at, against the plain twins that `verify` uses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.certificate import evidence
from ldaf_bench.theory.integrate import INTEGRATORS, integrate
from ldaf_bench.verify.checks import upper_twin
from ldaf_bench.verify.twins import BOUND_TWINS, UPPER_TWINS, excess
from tests.cases import few_points_for, logits_problem, rng, with_draws

every_bound = pytest.mark.parametrize("bound", BOUNDS.values(), ids=list(BOUNDS))


def test_every_bound_has_a_twin():
    assert set(BOUND_TWINS) == set(BOUNDS.values())


def test_every_guarantee_has_a_twin():
    assert set(UPPER_TWINS) == {entry for entry in INTEGRATORS.values() if entry.certifies}


@every_bound
@settings(max_examples=40)
@given(
    seed=st.integers(0, 10_000),
    m=st.integers(1, 400),
    kl=st.floats(0, 50),
    epsilon=st.floats(1e-5, 0.5),
    guess=st.floats(1e-3, 0.9),
)
def test_a_bound_is_what_its_twin_says(bound, seed, m, kl, epsilon, guess):
    values = torch.rand(m, dtype=torch.float64, generator=rng(seed)) ** 6
    values = torch.where(values > 0.5, 1.0, values)
    wrong = int((values > 0.4).sum()) / m
    taken = {"risk": wrong if bound.counts else float(values.mean()), "values": values.tolist(),
             "excess": [wrong, 0.5 * (1 - wrong), 0.2 * wrong]}[bound.takes]  # fmt: skip
    kl = kl if "posterior" in bound.about else 0.0
    (asked,) = bound.each([guess])
    own = (guess,) if bound.at else ()
    twin = BOUND_TWINS[bound](taken, kl, m, epsilon, *own)
    assert float(asked(torch.tensor(taken, dtype=torch.float64), kl, m, epsilon)) == pytest.approx(twin, abs=2e-8)


@pytest.mark.parametrize("integrator", INTEGRATORS.values(), ids=list(INTEGRATORS))
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_excess_is_what_its_twin_says_and_its_ends_enclose_the_truth(integrator, share):
    problem = with_draws(logits_problem(200, 4, seed=1))
    found = integrate(integrator.name, problem, num_points=few_points_for(integrator))
    wrong = torch.rand(200, generator=rng(2)) < share
    errors, worse, better = evidence(BOUNDS["split_kl"], integrator, [found], wrong, 0.01).tolist()
    draws = torch.zeros_like(problem.labels) if found.draws is None else found.draws
    twin = excess(found.per_datum.numpy(), draws.numpy(), wrong.numpy(), upper_twin(integrator), 0.01)
    assert [errors, worse, better] == pytest.approx(twin, abs=1e-9)
    truth = integrate("conditional", problem, num_points=8192).per_datum.numpy()
    lost, won = np.mean(truth * ~wrong.numpy()), np.mean((1 - truth) * wrong.numpy())
    assert errors == float(wrong.double().mean())
    if integrator.certifies and not integrator.counts and integrator.needs != "shared":  # few shared draws prove little
        assert lost - 1e-6 <= worse <= lost + 0.06
        assert won - 0.06 <= better <= won + 1e-6
