"""Every entry of COVARIANCES: valid, seeded by name, and as documented."""

import pytest
import torch

from ldaf_bench.theory.covariances import COVARIANCES, FINDS_ITS_SCALE, FLOOR, PriorData, initial_covariance
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


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: initial_covariance("papper", 9), "covariance must be one of"),
        (lambda: initial_covariance("paper", 0), "size must be an integer of at least 1"),
        (lambda: initial_covariance("paper", 9, scale=-1.0), "scale must be positive"),
        (lambda: initial_covariance("scaled", 9), "data must be prior-training data"),
        (lambda: initial_covariance("scaled", 9, data=prior_data(rise=0.99)), "rise must be within"),
    ],
)
def test_bad_input_is_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()
