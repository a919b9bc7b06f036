"""Every entry of COVARIANCES: valid, seeded by name, and as documented."""

import pytest
import torch

from ldaf_bench.theory.covariances import (
    COVARIANCES,
    FINDS_ITS_SCALE,
    FLOOR,
    PriorData,
    initial_covariance,
    logit_deviation,
)
from ldaf_bench.theory.gaussian import Dense, kl_divergence
from ldaf_bench.theory.integrate import integrate
from ldaf_bench.theory.logits import problem
from ldaf_bench.theory.pushforward import push
from tests.cases import normal, parameter


def prior_data(rise=0.02):
    features = 3 * normal(400, 3, 4, seed=1)
    pushed = push("daf", parameter("daf", 3, 4, seed=2), features)
    return PriorData(pushed, pushed.mean.argmax(-1), rise)


every = pytest.mark.parametrize("name", COVARIANCES)


@every
def test_valid_reproducible_and_seeded_by_name(name):
    data = prior_data()
    first, again, other = (initial_covariance(name, 9, seed=seed, data=data) for seed in (1, 1, 2))
    assert torch.equal(first.factor(), again.factor())
    assert float(kl_divergence(first, again)) < 1e-9
    random = name in ("paper", "code", "dense")
    assert torch.equal(first.factor(), other.factor()) == (not random)
    assert isinstance(first, Dense) == (name == "dense")


@pytest.mark.parametrize("name", sorted(set(COVARIANCES) - FINDS_ITS_SCALE))
def test_scale_scales(name):
    one, two = (initial_covariance(name, 20, scale=scale).factor().diagonal().mean() for scale in (0.01, 0.02))
    assert 1.5 < float(two / one) < 3


def test_paper_has_the_texts_variance_and_code_the_codes():
    paper, code = (initial_covariance(name, 20_000, seed=3) for name in ("paper", "code"))
    assert float(paper.q.mean()) == pytest.approx(0.1, abs=0.003)
    assert float(paper.q.var()) == pytest.approx(0.01, rel=0.05)
    assert float(paper.d.min()) == pytest.approx(FLOOR * 0.1)
    assert float(code.q.std()) == pytest.approx(0.01, rel=0.05)


def test_scaled_raises_the_risk_on_prior_data_by_the_set_amount():
    data = prior_data(rise=0.05)
    start = initial_covariance("scaled", 9, data=data)
    risk = float(integrate("conditional", problem(data.pushed, start, data.labels), num_points=1024).value)
    assert risk == pytest.approx(0.05, abs=0.004)


@pytest.mark.parametrize("name", sorted(set(COVARIANCES) - FINDS_ITS_SCALE))
@pytest.mark.parametrize("scale", [0.02, 1.5])
def test_a_scale_in_logits_is_the_deviation_of_drawn_logits_on_prior_data(name, scale):
    """By the definition: draws of the start, pushed to the logits, without their common part."""
    data = prior_data()
    start = initial_covariance(name, 9, scale=scale, seed=1, data=data, in_logits=True)
    draws = start.act(normal(20_000, 9, seed=5))
    rows = data.pushed.rows[:50] @ draws.T  # (data, c − 1, draws)
    logits = torch.cat([rows, -rows.sum(1, keepdim=True)], dim=1)
    one = PriorData(type(data.pushed)(*(tensor[:50] for tensor in data.pushed)), data.labels[:50])
    assert float((logits**2).mean().sqrt()) == pytest.approx(logit_deviation(start, one), rel=0.02)
    assert logit_deviation(start, data) == pytest.approx(scale, rel=1e-9)


def test_a_scale_in_logits_keeps_the_shape_of_the_covariance():
    data = prior_data()
    own, other = (initial_covariance("paper", 9, seed=1, data=data, in_logits=logits) for logits in (False, True))
    ratio = other.factor() / own.factor()
    assert torch.allclose(ratio, ratio[0, 0].expand_as(ratio))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: initial_covariance("papper", 9), "covariance must be one of"),
        (lambda: initial_covariance("paper", 0), "size must be an integer of at least 1"),
        (lambda: initial_covariance("paper", 9, scale=-1.0), "scale must be positive"),
        (lambda: initial_covariance("paper", 9, in_logits=True), "prior-training data for a scale in units"),
        (lambda: initial_covariance("scaled", 9), "data must be prior-training data"),
        (lambda: initial_covariance("scaled", 9, data=prior_data(rise=0.99)), "rise must be within"),
    ],
)
def test_bad_input_is_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()
