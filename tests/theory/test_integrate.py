"""Every entry of INTEGRATORS: right within its own error, honest about its guarantee, small in memory.

What an entry is tested for follows from what it says about itself.
"""

import dataclasses
import math
from typing import get_args

import mpmath
import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st

from ldaf_bench.theory.bounds import BOUNDS
from ldaf_bench.theory.integrate import (
    INTEGRATORS,
    Integration,
    Problem,
    accurate_risk,
    evaluate,
    integrate,
    reference_integrator,
    sobol_normals,
    vote_error,
)
from ldaf_bench.theory.integrate.bonferroni import hunter_worsley, standardized
from ldaf_bench.theory.integrate.kernels import count_errors
from ldaf_bench.theory.integrate.problem import Need
from ldaf_bench.theory.integrate.sampling import fill_normal_, mc, upper_of_draws
from ldaf_bench.theory.logits import flow_draw, problem
from ldaf_bench.theory.normal import bvn, upper_tail
from ldaf_bench.theory.pushforward import push
from tests import reference
from tests.cases import (
    classes,
    few_points_for,
    gaussian,
    logits_problem,
    normal,
    parameter,
    points_for,
    rng,
    seeds,
    with_draws,
)


def entries(which=lambda entry: True):
    found = [entry for entry in INTEGRATORS.values() if which(entry)]
    return pytest.mark.parametrize("entry", found, ids=lambda entry: entry.name)


def is_random(entry):
    """Whether it evaluates anything at points or draws, which a seed decides."""
    return bool(entry.least_points) or entry.counts


DRAWS = 200_000
good = logits_problem(4, 3, seed=1)


def flow_problem(m=8, n=3, c=4, seed=1):
    omega, features = parameter("daf", n, c, seed, scale=2.0), normal(m, n, c, seed=seed + 1)
    start = gaussian(n * (c - 1), seed=seed + 2)
    labels = features[:, 0].argmax(-1)
    return problem(push("daf", omega, features), start, labels, flow_draw("daf", omega, features))


@pytest.fixture(scope="module")
def sampled():
    p = flow_problem()
    return p, reference.monte_carlo(p.mean.numpy(), p.factor.numpy(), p.labels.numpy(), DRAWS, seed=7)


@entries()
def test_risk_agrees_with_a_long_monte_carlo_run(entry, sampled):
    p, (truth, _, _) = sampled
    num_points = points_for(entry)
    risk = integrate(entry.name, p, num_points=num_points)
    deviation = np.sqrt(np.maximum(truth * (1 - truth), 1 / DRAWS) / DRAWS)
    gap = risk.per_datum.numpy() - truth
    if entry.counts:
        assert set(risk.per_datum.tolist()) <= {0.0, 1.0}
        many = torch.stack([integrate(entry.name, p, seed=seed).per_datum for seed in range(400)]).mean(0).numpy()
        assert (np.abs(many - truth) < 5 * (deviation + np.sqrt(truth * (1 - truth) / 400))).all()
    elif entry.certifies and not entry.chance:
        assert (gap > -5 * deviation).all()
        assert gap.mean() < 0.03
    else:
        own = 2e-3 if entry.sobol else np.sqrt(truth * (1 - truth) / num_points)
        assert (np.abs(gap) < 5 * (deviation + own)).all()
    assert float(risk.value) == pytest.approx(float(risk.per_datum.mean()))
    assert risk.per_datum.dtype == torch.float64


def test_cross_entropy_agrees_with_a_long_monte_carlo_run(sampled):
    p, (_, truth, error) = sampled
    found = evaluate(p, sobol_normals(3, 8192, seed=1), "cross_entropy").numpy()
    assert (np.abs(found - truth) < 5 * (error + error * math.sqrt(DRAWS / 8192))).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(c=classes, seed=seeds)
def test_estimates_agree_among_each_other(dtype, c, seed):
    p = logits_problem(20, c, seed, dtype=dtype)
    names = ("qmc", "rqmc", "conditional")
    values = {name: float(integrate(name, p, num_points=2048, seed=seed).value) for name in names}
    assert values["qmc"] == pytest.approx(values["conditional"], abs=4e-3)
    assert values["rqmc"] == pytest.approx(values["conditional"], abs=8e-3)


@given(classes, seeds)
def test_bonferroni_is_above_the_truth_and_exact_for_two_rivals(c, seed):
    p = logits_problem(30, c, seed, scale=2.0)
    runs = torch.stack([integrate("conditional", p, num_points=4096, seed=k).per_datum for k in range(10)])
    bound, truth, slack = hunter_worsley(p), runs.mean(0), 12 * runs.std(0) / 10**0.5 + 1e-9
    assert (bound >= truth - slack).all()
    assert (bound <= 1).all()
    h, scale, covariance = standardized(*p.differences(torch.float64))
    if c == 3:
        correlation = covariance[:, 0, 1] / (scale[:, 0] * scale[:, 1])
        exact = upper_tail(h).sum(-1) - bvn(h[:, 0], h[:, 1], correlation)
        assert ((bound >= exact) & (bound <= exact + 1e-13)).all()
        assert ((truth - exact).abs() <= slack).all()


@pytest.mark.parametrize("spread", [1e2, 1e4, 1e6])
def test_bonferroni_stays_a_bound_for_nearly_collinear_rivals(spread):
    # A common deviation of y's own logit makes the two rivals' differences almost the same variable.
    mean = torch.tensor([[0.0, 0.5, 1.0]], dtype=torch.float64)
    factor = torch.tensor([[[1.0, 0.0], [spread, 1.0]]], dtype=torch.float64)
    p = Problem(mean, factor, torch.tensor([2]))
    d_mean, d_factor = (t[0] for t in p.differences())
    with mpmath.workdps(40):
        rows = [[mpmath.mpf(float(v)) for v in row] for row in d_factor]
        cov = [[sum(a * b for a, b in zip(x, y, strict=True)) for y in rows] for x in rows]
        h = [-mpmath.mpf(float(d_mean[j])) / mpmath.sqrt(cov[j][j]) for j in (0, 1)]
        rho = cov[0][1] / mpmath.sqrt(cov[0][0] * cov[1][1])
        width = mpmath.sqrt(1 - rho**2)
        jump = [h[1] / rho + k * width / abs(rho) for k in (-40, -10, -3, 0, 3, 10, 40)]
        cuts = sorted(x for x in [*jump, mpmath.mpf(-8), mpmath.mpf(8)] if h[0] < x < 40)
        joint = mpmath.quad(lambda x: mpmath.npdf(x) * mpmath.ncdf((rho * x - h[1]) / width), [h[0], *cuts, 40])
        exact = mpmath.ncdf(-h[0]) + mpmath.ncdf(-h[1]) - joint
    assert float(exact) <= float(hunter_worsley(p)) <= float(exact) + 1e-7


def test_bytes_are_labels_too():
    p = logits_problem(10, 3, seed=4)
    small = Problem(p.mean, p.factor, p.labels.to(torch.uint8))
    assert torch.equal(integrate("qmc", small).per_datum, integrate("qmc", p).per_datum)


def test_conditional_is_exact_where_nothing_is_left_to_integrate():
    p = logits_problem(40, 2, seed=3)
    mean, factor = p.differences()
    truth = torch.special.ndtr(mean[:, 0] / factor[:, 0, 0].abs())
    torch.testing.assert_close(integrate("conditional", p, num_points=1).per_datum, truth)


@entries()
def test_statement_fits_the_guarantee(entry):
    assert INTEGRATORS[entry.name] is entry
    assert entry.needs in get_args(Need)
    risk = integrate(entry.name, flow_problem(), num_points=few_points_for(entry))
    assert entry.certifies == (risk.draws is not None) == (entry.upper is not None)
    assert entry.costs_delta == (entry.certifies and entry.chance)
    if entry.certifies:
        loose, tight = entry.upper(risk, 0.02), entry.upper(risk, 0.002)
        assert float(risk.value) <= loose <= tight <= 1
        assert (loose < tight) == entry.chance  # what is left to chance costs more at a smaller δ′
        drawn = entry.chance or entry.counts
        assert bool((risk.draws > 0).any()) == (risk.standard_error is not None) == drawn
    if entry.counts:  # the errors themselves: their chance is that of the bound
        assert not entry.chance
        assert entry.upper(risk, 0.02) == float(risk.value)
        assert torch.equal(risk.draws, torch.ones_like(risk.draws))
    assert (risk.num_evaluations > 0) == is_random(entry)


@entries()
def test_seeded_and_reproducible(entry):
    p, count = flow_problem(), few_points_for(entry)
    first, again, other = (integrate(entry.name, p, num_points=count, seed=seed).per_datum for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert torch.equal(first, other) != is_random(entry)


@entries(lambda entry: entry.least_points)
def test_too_few_points_are_refused(entry):
    p = with_draws(logits_problem(4, 3, seed=1))
    integrate(entry.name, p, num_points=entry.least_points)
    with pytest.raises(ValueError, match="num_points must be"):
        integrate(entry.name, p, num_points=entry.least_points - 1)


@entries(lambda entry: entry.sobol)
def test_numbers_of_sobol_points_are_powers_of_two(entry):
    p = logits_problem(4, 3, seed=1)
    with pytest.raises(ValueError, match=r"num_points must be .*power of 2"):
        integrate(entry.name, p, num_points=3 * points_for(entry) // 4)


@entries()
def test_what_a_problem_does_not_offer_is_refused(entry):
    p = with_draws(logits_problem(4, 3, seed=1))
    other = dataclasses.replace(p, draw=None, shared=None)
    if entry.needs == "gaussian":
        other = Problem(None, None, p.labels, p.draw, num_classes=3)
    assert entry.needs not in other.offers
    with pytest.raises(ValueError, match=f"problem must be one that offers {entry.needs} for {entry.name}"):
        integrate(entry.name, other, num_points=few_points_for(entry))


def fails_no_more_often_than(delta, uppers, truth):
    failures, count = sum(upper < truth for upper in uppers), len(uppers)
    assert failures <= delta * count + 4 * math.sqrt(count * delta * (1 - delta))
    return failures


@entries(lambda entry: entry.certifies and not entry.counts)
def test_upper_bounds_fail_no_more_often_than_delta(entry):
    p = with_draws(logits_problem(10, 4, seed=5))
    truth = float(integrate("conditional", p, num_points=8192).value)
    repeats = range(400 if entry.chance else 1)
    count = max(20, entry.least_points)
    uppers = [entry.upper(integrate(entry.name, p, num_points=count, seed=k), 0.2) for k in repeats]
    failures = fails_no_more_often_than(0.2 if entry.chance else 0.0, uppers, truth)
    # A bound that never fails at δ′ = 0.2 would be wasteful or broken; that of draws which all data share is wasteful.
    assert (failures > 0) == (entry.chance and entry.needs != "shared")


@entries(lambda entry: entry.counts)
@pytest.mark.parametrize("bound", [bound for bound in BOUNDS.values() if bound.counts], ids=lambda bound: bound.name)
def test_bounds_that_count_errors_hold_for_the_errors_of_one_draw_per_datum(entry, bound):
    """Certificate points afresh each time: the bound is on the true risk, over points and draws together."""
    failures, m, repeats = 0, 40, 400
    world = with_draws(logits_problem(20, 4, seed=5))
    truth = float(integrate("conditional", world, num_points=8192).value)
    for seed in range(repeats):
        some = torch.randint(20, (m,), generator=rng(seed))
        sample = with_draws(Problem(world.mean[some], world.factor[some], world.labels[some]))
        risk = entry.upper(integrate(entry.name, sample, seed=seed), 0.5)
        failures += float(bound(risk, 0.0, m, 0.2)) < truth
    assert 0 < failures <= 0.2 * repeats + 4 * math.sqrt(repeats * 0.2 * 0.8)


def test_upper_bound_of_mc_is_as_valid_where_it_skips():
    p = logits_problem(10, 4, seed=5)
    truth = float(integrate("conditional", p, num_points=8192).value)
    runs = [mc(p, num_points=20, seed=k, negligible=0.3) for k in range(400)]
    assert 0 < int((runs[0].draws == 0).sum()) < 10
    assert fails_no_more_often_than(0.2, [upper_of_draws(run, 0.2) for run in runs], truth) > 0


def test_data_that_cannot_matter_are_charged_but_not_sampled():
    p = logits_problem(50, 4, seed=6, scale=0.5)
    sure = Problem(p.mean + 40 * torch.nn.functional.one_hot(p.labels, 4), p.factor, p.labels)
    mixed = Problem(torch.cat([p.mean, sure.mean]), torch.cat([p.factor] * 2), torch.cat([p.labels] * 2))
    risk = mc(mixed, num_points=100, seed=0)
    assert risk.num_evaluations <= 50 * 100
    skipped = hunter_worsley(mixed) <= 1e-7
    assert torch.equal(risk.draws == 0, skipped)
    assert torch.equal(risk.per_datum[skipped], hunter_worsley(mixed)[skipped])
    everything = mc(mixed, num_points=100, seed=0, negligible=0.0)
    assert everything.num_evaluations == 100 * 100


def test_draws_and_upper_values_are_charged_together():
    values = torch.tensor([1e-8, 0.25, 0.5, 0.75], dtype=torch.float64)
    risk = Integration(values, torch.tensor([0, 100, 100, 100]))
    alone = Integration(values[1:], torch.tensor([100, 100, 100]))
    assert upper_of_draws(risk, 0.01) == pytest.approx((1e-8 + 3 * upper_of_draws(alone, 0.01)) / 4)
    with pytest.raises(ValueError, match="draws must be equally many for all data that are drawn for"):
        upper_of_draws(Integration(values, torch.tensor([0, 100, 100, 50])), 0.01)
    with pytest.raises(ValueError, match="delta must be in the open interval"):
        upper_of_draws(risk, 0.0)


def test_degenerate_covariances_are_sampled_by_mc_and_refused_by_bonferroni():
    p = logits_problem(6, 4, seed=12)
    still = Problem(p.mean, torch.zeros_like(p.factor), p.labels)
    wrong = (p.mean.argmax(-1) != p.labels).double()
    risk = integrate("mc", still, num_points=50)
    assert torch.equal(risk.per_datum, wrong)
    assert upper_of_draws(risk, 0.05) >= float(wrong.mean())
    tied = Problem(torch.zeros_like(p.mean), torch.zeros_like(p.factor), p.labels)
    assert float(integrate("mc", tied, num_points=50).value) == 1.0
    with pytest.raises(ValueError, match="the integrand must be finite"):
        integrate("bonferroni", tied)


def has_a_standard_error(entry):
    found = integrate(entry.name, with_draws(good), num_points=few_points_for(entry))
    return found.standard_error is not None


@entries(has_a_standard_error)
def test_standard_errors_cover(entry):
    p, count = with_draws(logits_problem(20, 4, seed=8)), max(256, few_points_for(entry))
    truth = float(integrate("conditional", p, num_points=1 << 14).value)
    runs = [integrate(entry.name, p, num_points=count, seed=k) for k in range(60)]
    scores = [(float(run.value) - truth) / run.standard_error for run in runs]
    assert sum(abs(score) < 3.5 for score in scores) >= 54  # few degrees of freedom: heavier than normal


def test_rqmc_has_the_standard_error_that_it_promises():
    assert integrate("rqmc", flow_problem(), num_points=64).standard_error > 0


def test_cross_entropy_is_differentiable_in_mean_and_factor():
    p, points = logits_problem(3, 4, seed=9), sobol_normals(3, 64, seed=1)
    leaves = (p.mean.clone().requires_grad_(), p.factor.clone().requires_grad_())

    def value(mean, factor):
        return evaluate(Problem(mean, factor, p.labels), points, "cross_entropy").mean()

    assert torch.autograd.gradcheck(value, leaves, eps=1e-6, atol=1e-8)


@given(classes, seeds)
def test_tiny_cross_entropies_keep_their_relative_accuracy_in_float32(c, seed):
    p = logits_problem(10, c, seed, scale=0.3)
    sure = Problem(p.mean + 15 * torch.nn.functional.one_hot(p.labels, c), p.factor, p.labels)
    half = Problem(sure.mean.float(), sure.factor.float(), sure.labels)
    points = sobol_normals(c - 1, 64, seed)
    torch.testing.assert_close(
        evaluate(half, points, "cross_entropy"), evaluate(sure, points, "cross_entropy"), rtol=1e-4, atol=0
    )


def test_tiles_change_nothing(monkeypatch):
    p = logits_problem(37, 4, seed=11)
    points = sobol_normals(3, 8192, 1)
    whole = [evaluate(p, points, loss) for loss in ("zero_one", "cross_entropy")]
    drawn = integrate("mc", p, num_points=9000)
    monkeypatch.setattr("ldaf_bench.theory.integrate.kernels.TILE", 7 * 3 * 4096)
    parts = [evaluate(p, points, loss) for loss in ("zero_one", "cross_entropy")]
    torch.testing.assert_close(whole[0], parts[0], rtol=0, atol=0)
    torch.testing.assert_close(whole[1], parts[1], rtol=1e-13, atol=1e-13)
    assert torch.equal(integrate("mc", p, num_points=9000).per_datum, drawn.per_datum)


@given(st.integers(1, 20), st.integers(0, 10), seeds)
def test_sobol_points_are_balanced_nets_and_never_infinite(dimension, power, seed):
    count = 1 << power
    points = sobol_normals(dimension, count, seed)
    assert points.shape == (dimension, count)
    assert torch.isfinite(points).all()
    cells = (torch.special.ndtr(points) * count).floor().clamp(0, count - 1)
    for row in cells:  # exactly one point in every interval [k/count, (k+1)/count)
        assert len(row.unique()) == count


def test_drawn_normals_are_normal_finite_and_fresh():
    draws = fill_normal_(torch.empty(400_000, dtype=torch.float64), rng(1))
    assert torch.isfinite(draws).all()
    assert scipy.stats.kstest(draws.numpy(), "norm").pvalue > 1e-3
    assert float((draws.abs() > 4).double().mean()) == pytest.approx(6.3e-5, rel=0.5)
    again = fill_normal_(torch.empty(1000, dtype=torch.float64), rng(2))
    assert not torch.isin(again, draws).any()


def test_not_a_number_is_an_error_never_a_success():
    p = flow_problem()

    def poisoned(part, count, generator):
        return torch.full((len(p.mean[part]), count, 4), torch.nan, dtype=torch.float64)

    broken = Problem(p.mean, p.factor, p.labels, draw=poisoned)
    assert upper_of_draws(integrate("forward_mc", broken, num_points=4), 0.05) == 1.0
    assert float(count_errors(torch.full((1, 3), torch.nan), torch.eye(3)[None], torch.zeros(3, 5))) == 5


def test_ties_count_as_errors():
    p = Problem(torch.zeros(1, 3).double(), 1e-3 * torch.eye(2).double()[None], torch.tensor([2]))
    assert float(evaluate(p, torch.zeros(2, 5), "zero_one")) == 1.0
    tied = dataclasses.replace(p, draw=lambda part, count, generator: torch.zeros(1, count, 3))
    assert float(integrate("forward_mc", tied, num_points=5).value) == 1.0


def test_a_problem_offers_what_it_was_given():
    p = with_draws(logits_problem(4, 3, seed=1))
    drawn = Problem(None, None, p.labels, p.draw, num_classes=3)
    assert Problem(p.mean, p.factor, p.labels).offers == {"gaussian"}
    assert (p.offers, drawn.offers) == ({"gaussian", "draws", "shared"}, {"draws"})
    assert (drawn.num_data, drawn.num_classes) == (4, 3)
    with pytest.raises(ValueError, match="problem must have Gaussian logits"):
        drawn.differences()


@pytest.mark.parametrize("num_classes", [2, 4])
def test_the_vote_is_for_the_class_that_most_draws_choose(num_classes):
    p = logits_problem(60, num_classes, seed=3)
    rng, lift = np.random.default_rng(0), reference.basis(num_classes)
    wrong, clear = [], []
    for mean, factor, label in zip(p.mean.numpy(), p.factor.numpy(), p.labels.numpy(), strict=True):
        chosen = (mean + rng.standard_normal((20_000, num_classes - 1)) @ (lift @ factor).T).argmax(1)
        shares = np.sort(np.bincount(chosen, minlength=num_classes))[::-1] / 20_000
        wrong.append(np.bincount(chosen, minlength=num_classes).argmax() != label)
        clear.append(shares[0] - shares[1] > 0.05)
    assert abs(vote_error(p) - np.mean(wrong)) <= 1 - np.mean(clear)
    assert np.mean(clear) > 0.9
    assert 0 < np.mean(wrong) < 1


def test_a_vote_without_a_winner_is_an_error():
    undecided = Problem(torch.zeros(1, 2).double(), torch.ones(1, 1, 1).double(), torch.tensor([0]))
    assert vote_error(undecided, num_points=2) == 1.0
    assert vote_error(dataclasses.replace(undecided, mean=torch.tensor([[9.0, 0.0]]).double())) == 0.0


def test_problems_without_a_closed_form_have_a_reference_and_a_reported_risk_too():
    p = with_draws(logits_problem(30, 4, seed=2))
    drawn = Problem(None, None, p.labels, p.draw, num_classes=4)
    for one in (p, drawn):
        entry = reference_integrator(one)
        assert entry.costs_delta
        assert entry.needs in one.offers
    truth = float(integrate("conditional", p, num_points=8192).value)
    assert accurate_risk(p) == pytest.approx(truth, abs=1e-3)
    assert accurate_risk(drawn) == pytest.approx(truth, abs=5 * math.sqrt(truth * (1 - truth) / (30 * 256)))


def test_an_integrator_that_certifies_must_say_what_its_values_rest_on(monkeypatch):
    lying = dataclasses.replace(INTEGRATORS["qmc"], name="lying", upper=upper_of_draws)
    monkeypatch.setitem(INTEGRATORS, "lying", lying)
    with pytest.raises(AssertionError, match="lying says that it certifies"):
        integrate("lying", good)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: integrate("sobol", good), "integrator must be one of"),
        (lambda: evaluate(good, sobol_normals(2, 4, 1), "hinge"), "loss must be zero_one or cross_entropy"),
        (lambda: evaluate(good, sobol_normals(3, 4, 1), "zero_one"), r"points must be of shape \(2, any\)"),
        (lambda: evaluate(good, torch.zeros(2, 0), "zero_one"), "points must be at least one"),
        (lambda: integrate("qmc", good, num_points=1000), "num_points must be a power of 2"),
        (lambda: integrate("mc", good, num_points=0), "num_points must be an integer of at least 1"),
        (
            lambda: integrate("rqmc", good, num_points=4),
            r"num_points must be 8 \(the number of scrambles\) times a power",
        ),
        (lambda: Problem(good.mean, good.factor, good.labels + 3), r"labels must be in 0 … 2"),
        (lambda: Problem(good.mean, good.factor, good.labels - 3), r"labels must be in 0 … 2"),
        (lambda: Problem(good.mean, good.factor, good.labels.double()), "labels must be of an integer dtype"),
        (lambda: Problem(good.mean, good.factor, good.labels[:2]), r"labels must be of shape \(4,\)"),
        (lambda: Problem(good.mean * torch.nan, good.factor, good.labels), "mean must be finite"),
        (lambda: Problem(good.mean, good.factor[:, :1], good.labels), r"factor must be of shape \(4, 2, 2\)"),
        (lambda: Problem(good.mean, None, good.labels), "factor must be given together with the mean"),
        (lambda: Problem(None, good.factor, good.labels, num_classes=3), "factor must be given together with the mean"),
        (lambda: Problem(good.mean[:0], good.factor[:0], good.labels[:0]), "mean must be of at least one datum"),
        (lambda: Problem(good.mean[:, :1], good.factor, good.labels), "num_classes must be at least two"),
    ],
)
def test_bad_input_is_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()
