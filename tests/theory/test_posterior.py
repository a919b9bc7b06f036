"""Fitting: the bound falls, B stays invertible, bad numbers stop it with a sentence."""

import math

import pytest
import torch

from ldaf_bench.theory.bounds import best_lambda, complexity, lambda_bound, lambda_value
from ldaf_bench.theory.covariances import initial_covariance
from ldaf_bench.theory.gaussian import DiagonalRankOne, kl_divergence
from ldaf_bench.theory.integrate import INTEGRATORS, accurate_risk, evaluate, integrate, sobol_normals
from ldaf_bench.theory.logits import problem
from ldaf_bench.theory.posterior import OBJECTIVES, OPTIMIZERS, FitSettings, _Model, fit
from ldaf_bench.theory.pushforward import Pushforward, push
from ldaf_bench.theory.seeds import named_seed
from ldaf_bench.theory.simplex import expand
from tests.cases import few_points_for, logits_problem, normal, parameter, rng, with_draws

M, N, C = 300, 4, 4
SIZE = N * (C - 1)


@pytest.fixture(scope="module")
def cached():
    features = 2 * normal(M, N, C, seed=1)
    pushed = push("daf", parameter("daf", N, C, seed=2, scale=2.0), features)
    noise = torch.rand(M, generator=rng(3)) < 0.1
    random = torch.randint(C, (M,), generator=rng(4))
    return pushed, torch.where(noise, random, pushed.mean.argmax(-1))


def settings(**change):
    return FitSettings(**{"num_points": 128, "epsilon": 0.05, **change})


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("covariance", ["constant", "code", "isotropic", "dense"])
def test_fit_lowers_the_bound_and_reports_what_it_found(cached, optimizer, covariance):
    pushed, labels = cached
    prior = initial_covariance(covariance, SIZE, scale=0.8)
    posterior = fit(pushed, labels, prior, settings(optimizer=optimizer))
    first, best = posterior.history[0], min(posterior.history, key=lambda step: step.bound)
    assert first.divergence == pytest.approx(0, abs=1e-9)
    assert best.bound < first.bound - 1e-3
    assert posterior.kl == pytest.approx(float(kl_divergence(posterior.gaussian, prior)), abs=1e-9)
    points = sobol_normals(C - 1, 128, named_seed("posterior", 0))
    entropy = evaluate(problem(pushed, posterior.gaussian, labels), points, "cross_entropy").mean()
    c = complexity(posterior.kl, M, 0.05)
    assert best.bound == pytest.approx(float(lambda_value(entropy, c, best_lambda(entropy, c))), rel=1e-6)
    assert posterior.lam == pytest.approx(float(best_lambda(entropy, c)), rel=1e-6)


def test_fit_converges_to_a_stationary_point(cached):
    pushed, labels = cached
    prior = initial_covariance("code", SIZE, scale=0.8)
    patient = {"tolerance": 1e-5, "max_alternations": 60}
    found = [fit(pushed, labels, prior, settings(learning_rate=rate, **patient)) for rate in (0.01, 0.03)]
    assert all(posterior.converged for posterior in found)
    bounds = [min(step.bound for step in posterior.history) for posterior in found]
    assert bounds[0] == pytest.approx(bounds[1], rel=2e-3)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("mean", [False, True])
def test_gradient_of_the_objective_equals_finite_differences(cached, objective, mean):
    pushed, labels = cached
    asked = settings(objective=objective, mean=mean, num_points=16)
    model = _Model(pushed, labels, initial_covariance("code", SIZE, scale=0.5), asked, raw=False)
    assert len(model.leaves) == 2 + mean
    for leaf in model.leaves:
        leaf.requires_grad_()

    def value():
        return model.objective(0.3, 0.05, torch.arange(M))

    value().backward()
    for leaf in model.leaves:
        for k in (0, SIZE - 1):
            values = []
            for step in (1e-5, -1e-5):
                with torch.no_grad():
                    leaf[k] += step
                    values.append(float(value()))
                    leaf[k] -= step
            assert float(leaf.grad[k]) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-5, abs=1e-9)


def zero_one_bound(pushed, labels, posterior):
    """The λ-bound on the 0-1 Gibbs risk of a posterior, by an accurate estimate."""
    risk = accurate_risk(problem(pushed, posterior.gaussian, labels), num_points=1024, seed=5)
    return float(lambda_bound(risk, posterior.kl, M, 0.05))


@pytest.mark.parametrize("covariance", ["code", "isotropic", "dense"])
def test_the_objective_zero_one_finds_a_bound_that_cross_entropy_does_not_beat(cached, covariance):
    prior = initial_covariance(covariance, SIZE, scale=0.8)
    patient = {"max_alternations": 40, "tolerance": 1e-5}
    surrogate = zero_one_bound(*cached, fit(*cached, prior, settings(**patient)))
    direct = fit(*cached, prior, settings(objective="zero_one", num_points=16, **patient))
    assert zero_one_bound(*cached, direct) <= surrogate + 1e-4
    assert min(step.bound for step in direct.history) == pytest.approx(zero_one_bound(*cached, direct), abs=2e-3)


@pytest.mark.parametrize("covariance", ["code", "dense"])
def test_a_fitted_mean_lowers_the_bound_and_its_divergence_is_that_of_torch(cached, covariance):
    prior = initial_covariance(covariance, SIZE, scale=0.8)
    still, moved = (fit(*cached, prior, settings(objective="zero_one", num_points=16, mean=m)) for m in (False, True))
    assert still.gaussian.mean is None
    assert min(step.bound for step in moved.history) < min(step.bound for step in still.history)
    one, zero = (
        torch.distributions.MultivariateNormal(mean, g.factor() @ g.factor().mT)
        for mean, g in ((moved.gaussian.mean, moved.gaussian), (torch.zeros(SIZE).double(), prior))
    )
    assert moved.kl == pytest.approx(float(torch.distributions.kl_divergence(one, zero)), rel=1e-7)
    # By the definition: drawn starts, carried to the logits by (M, G).
    pushed, labels = cached
    start = one.mean + normal(500, SIZE, seed=9) @ one.scale_tril.mT
    logits = pushed.mean[:, None] + expand(start @ pushed.rows.mT)
    errors = (logits.argmax(-1) != labels[:, None]).double().mean()
    assert accurate_risk(problem(pushed, moved.gaussian, labels)) == pytest.approx(float(errors), abs=0.01)


def test_a_fitted_mean_stays_near_zero_under_a_strong_prior(cached):
    prior = initial_covariance("isotropic", SIZE, scale=1e-3)
    posterior = fit(*cached, prior, settings(mean=True, learning_rate=0.003))
    assert float((posterior.gaussian.mean / 1e-3).norm()) < 0.1
    assert posterior.kl < 0.01


def test_float32_cache_gives_the_same_posterior(cached):
    pushed, labels = cached
    half = Pushforward(pushed.mean.float(), pushed.rows.float(), pushed.error)
    prior = initial_covariance("code", SIZE, scale=0.8)
    bounds = [fit(p, labels, prior, settings()).history[-1].bound for p in (pushed, half)]
    assert bounds[0] == pytest.approx(bounds[1], rel=1e-4)


def test_fit_is_reproducible_and_seeded(cached):
    pushed, labels = cached
    prior = initial_covariance("code", SIZE)
    first, again, other = (fit(pushed, labels, prior, settings(seed=s, max_alternations=1)) for s in (1, 1, 2))
    assert torch.equal(first.gaussian.factor(), again.gaussian.factor())
    assert not torch.equal(first.gaussian.factor(), other.gaussian.factor())


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_paper_sgd_never_leaves_the_invertible_region(cached, rate):
    pushed, labels = cached
    prior = initial_covariance("constant", SIZE, scale=0.3)
    posterior = fit(pushed, labels, prior, settings(optimizer="sgd", learning_rate=rate, max_alternations=3))
    assert isinstance(posterior.gaussian, DiagonalRankOne)
    assert float(posterior.gaussian.d.min()) > 0


def test_no_integrator_shares_its_points_with_another_or_with_the_fit(cached, monkeypatch):
    used = []

    class Spy(torch.quasirandom.SobolEngine):
        def __init__(self, dimension, scramble, seed):
            used.append(seed)
            super().__init__(dimension, scramble=scramble, seed=seed)

    def spied_seed(*parts):
        used.append(named_seed(*parts))
        return used[-1]

    monkeypatch.setattr(torch.quasirandom, "SobolEngine", Spy)
    monkeypatch.setattr("ldaf_bench.theory.seeds.named_seed", spied_seed)  # what `named_generator` calls
    fit(*cached, initial_covariance("code", SIZE), settings(max_alternations=1))
    whose = {"fit": set(used)}
    problem = with_draws(logits_problem(20, C, seed=1))
    for name, entry in INTEGRATORS.items():
        used.clear()
        integrate(name, problem, num_points=few_points_for(entry))
        whose[name] = set(used)
        assert bool(used) == bool(entry.least_points or entry.counts), name
    assert len(set().union(*whose.values())) == sum(map(len, whose.values()))


def test_non_finite_values_stop_with_the_step_that_made_them(cached):
    pushed, labels = cached
    prior = initial_covariance("constant", SIZE)
    with pytest.raises(ArithmeticError, match=r"alternation 1 with sgd: at step \d+ of 10, .* Lower the learning rate"):
        fit(pushed, labels, prior, settings(optimizer="sgd", learning_rate=1e12))
    poisoned = Pushforward(pushed.mean, pushed.rows.clone(), pushed.error)
    poisoned.rows[5] = math.nan
    with pytest.raises(ValueError, match=r"the cached rows must be finite everywhere"):
        fit(poisoned, labels, prior, settings())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optimizer": "lbgfs"}, "optimizer must be one of"),
        ({"objective": "hinge"}, "objective must be one of cross_entropy, zero_one"),
        ({"epochs": 0}, "epochs must be an integer of at least 1"),
        ({"tolerance": 0.0}, "tolerance must be positive"),
        ({"learning_rate": -1.0}, "learning_rate must be positive"),
        ({"epsilon": 1.5}, "epsilon must be in the open interval"),
        ({"num_points": 100}, "num_points must be a power of 2"),
    ],
)
def test_bad_settings_are_refused_by_name(cached, change, words):
    with pytest.raises(ValueError, match=words):
        fit(*cached, initial_covariance("code", SIZE), settings(**change))


def test_bad_data_are_refused_by_name(cached):
    pushed, labels = cached
    with pytest.raises(ValueError, match="labels must be in"):
        fit(pushed, labels + 1, initial_covariance("code", SIZE))
    with pytest.raises(ValueError, match="prior must be of size 12"):
        fit(pushed, labels, initial_covariance("code", SIZE + 3))
    with pytest.raises(ValueError, match="prior must be of positive d"):
        fit(pushed, labels, DiagonalRankOne(-torch.ones(SIZE).double(), torch.zeros(SIZE).double()))
