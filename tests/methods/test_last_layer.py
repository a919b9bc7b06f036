"""The Gaussian last layer of a trained network: by its definition, weights drawn around the trained ones."""

import pytest
import torch

from ldaf_bench.methods import METHODS, last_layer
from ldaf_bench.plan import make_plan
from ldaf_bench.suite import Suite
from ldaf_bench.theory.integrate import accurate_risk
from tests.networks import config_for, data_of, digits_splits, trained

METHOD = last_layer.LAST_LAYER


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("network"), config_for(METHOD.name))


@pytest.fixture(scope="module")
def data(network):
    return data_of(network, METHOD.name, "certificate")


def test_it_shares_the_trained_network_of_the_deterministic_method():
    content = {
        "suite": "both",
        "data": {"dataset": "digits"},
        "networks": {"backbone": "tinynet", "recipe": "tiny"},
        "methods": {"deterministic": {}, METHOD.name: {"mean": ["fixed", "fitted"], "scales": ["each", "one"]}},
        "certificates": {"bound": ["kl", "test_set"]},
    }
    plan = make_plan(Suite.model_validate(content), digits_splits()[0].summary)
    assert len(plan.networks) == 1
    assert len(plan.posteriors) == 4
    assert len({posterior.prior_identity for posterior in plan.posteriors}) == 1


def test_the_trained_weights_times_the_features_are_the_logits(network, data):
    weights = last_layer.trained_weights(network.model())
    torch.testing.assert_close(data.digest["features"] @ weights.mT, data.digest["logits"], rtol=1e-4, atol=1e-4)


def test_the_risk_is_that_of_the_network_with_drawn_weights(network, data):
    """Each draw puts other weights into the network itself."""
    prior = METHOD.prior(last_layer.Prior(covariance="isotropic", scale=0.2), network, None, 0)
    dataset, splits = digits_splits()
    images = torch.from_numpy(dataset.images[splits.certificate[:120]])
    model, generator, draws = network.model(), torch.Generator().manual_seed(3), 400
    layer = model.head.linear
    trained_weight, trained_bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    wrong = 0.0
    with torch.no_grad():
        for _ in range(draws):
            layer.weight.copy_(trained_weight + 0.2 * torch.randn(trained_weight.shape, generator=generator))
            layer.bias.copy_(trained_bias + 0.2 * torch.randn(trained_bias.shape, generator=generator))
            wrong += float((model(images).argmax(1) != data.labels).double().mean())
    found = accurate_risk(METHOD.problem(METHOD.digest_axes(), prior, data))
    assert found > 0.02 + float((data.digest["logits"].argmax(1) != data.labels).double().mean())
    assert found == pytest.approx(wrong / draws, abs=0.01)


def test_every_combination_of_its_axes_fits_from_the_same_prior(network, data):
    prior = METHOD.prior(last_layer.Prior(covariance="isotropic", scale=0.2), network, None, 0)
    for mean in ("fixed", "fitted"):
        for scales in ("each", "one"):
            spec = last_layer.Fit(mean=mean, scales=scales, max_alternations=2, fit_points=64)
            found = METHOD.fit(spec, prior, data, 0, lambda value: None)
            assert (found.distribution.mean is None) == (mean == "fixed")
            assert (len(found.distribution.d.unique()) == 1) == (scales == "one")
            assert found.history[-1]["bound"] < found.history[0]["bound"]
            assert set(found.history[0]) == {"x", "cross_entropy", "divergence", "lam", "bound", "seconds"}


def test_points_that_an_objective_does_not_use_have_no_effect():
    for name, unused, used in (("zero_one", "fit_points", "zero_one_points"),
                               ("cross_entropy", "zero_one_points", "fit_points")):  # fmt: skip
        for method in ("ldaf", METHOD.name):
            spec = METHODS[method].fit_axes(objective=name)
            assert unused in spec.unused()
            assert used in spec.used()
