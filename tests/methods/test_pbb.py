"""PBB agrees with plain loops over weight draws, and its KL with torch's; draws that are shared count once."""

import copy
import math

import pytest
import torch
from torch import nn

from ldaf_bench.methods import pbb
from ldaf_bench.models.backbones import BACKBONES
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import LinearHead
from ldaf_bench.models.stochastic import StochasticClassifier
from ldaf_bench.theory.bounds import kl_inverse
from ldaf_bench.theory.integrate import integrate
from ldaf_bench.theory.integrate.sampling import SHARED_MC, upper_of_shared
from tests.networks import config_for, data_of, trained


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    network = trained(tmp_path_factory.mktemp("store"), config_for("pbb", recipe={"epochs": 6}))
    return data_of(network, "pbb", "certificate")


def drawn_layers(model):
    """Names of what is drawn, from the definition: weights and biases of convolutions and linear layers."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            for key, value in layer.named_parameters(recurse=False):
                if value.requires_grad:
                    yield f"{name}.{key}"


def by_hand(model, names, weights, image):
    """Logits after writing a draw into a copy of the network, weight by weight."""
    other = copy.deepcopy(model).eval()
    state, at = other.state_dict(), 0
    for name in names:
        target = state[name]
        piece = weights[at : at + target.numel()]
        at += target.numel()
        if target.ndim == 4:  # output channel, row, column, input channel
            o, i, h, w = target.shape
            for k in range(o):
                target[k] = piece[k * i * h * w : (k + 1) * i * h * w].reshape(h, w, i).permute(2, 0, 1)
        else:
            target.copy_(piece.reshape(target.shape))
    assert at == len(weights)
    with torch.no_grad():
        return other(image[None])[0]


@pytest.mark.parametrize(("backbone", "shape"), [("tinynet", (1, 8, 8)), ("speednet", (1, 16, 16))])
def test_fresh_and_shared_draws_are_those_of_a_plain_loop(backbone, shape):
    torch.manual_seed(0)
    model = Classifier(backbone, LinearHead(), shape, 10).eval()
    names = list(drawn_layers(model))
    plain = copy.deepcopy(model)
    stochastic = StochasticClassifier(model)
    mean, scale = stochastic.weights, 0.05 * torch.rand_like(stochastic.weights)
    images = torch.randint(0, 256, (2, *shape), dtype=torch.uint8)
    found = stochastic.fresh(mean, scale, images, 2, torch.Generator().manual_seed(3))
    size = len(mean)
    noise = torch.empty(4, size).normal_(generator=torch.Generator().manual_seed(3))
    if backbone != "tinynet":  # one draw at a time
        generator = torch.Generator().manual_seed(3)
        noise = torch.stack([torch.empty(1, size).normal_(generator=generator)[0] for _ in range(4)])
    for k in range(4):
        expected = by_hand(plain, names, mean + scale * noise[k], images[k // 2])
        assert torch.allclose(found[k // 2, k % 2], expected, atol=1e-3)
    one = stochastic.shared(mean, scale, images, torch.Generator().manual_seed(5))
    weights = mean + scale * torch.empty(size).normal_(generator=torch.Generator().manual_seed(5))
    for k in range(2):
        assert torch.allclose(one[k], by_hand(plain, names, weights, images[k]), atol=1e-3)


@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_backbone_is_itself_at_its_trained_weights(backbone):
    model = Classifier(backbone, LinearHead(), (3, 16, 16), 10).eval()
    images = torch.randint(0, 256, (3, 3, 16, 16), dtype=torch.uint8)
    with torch.no_grad():
        expected = model(images)
        stochastic = StochasticClassifier(model)
        assert torch.allclose(stochastic(stochastic.weights, images), expected, atol=1e-4)


def test_kl_is_that_of_independent_normals():
    torch.manual_seed(1)
    prior = pbb.Weights(torch.randn(50), torch.rand(50) + 0.1)
    posterior = pbb.Weights(prior.mean + 0.1 * torch.randn(50), torch.rand(50) + 0.05)
    normals = [torch.distributions.Normal(one.mean.double(), one.scale.double()) for one in (posterior, prior)]
    expected = float(torch.distributions.kl_divergence(*normals).sum())
    assert posterior.kl_from(prior) == pytest.approx(expected, rel=1e-12)
    assert prior.kl_from(prior) == 0


@pytest.mark.parametrize("scale", [0.1, 0.5])
def test_a_scale_in_units_of_the_logits_moves_them_by_as_much(data, scale):
    spec = pbb.PriorSpec(scale=scale, unit="logits")
    assert pbb.PBB.needs_prior_data(spec)
    weights = pbb.prior(spec, data.network, data, 0)
    assert len(weights.scale.unique()) == 1
    stochastic = StochasticClassifier(data.network.model())
    generator = torch.Generator().manual_seed(9)  # other draws than those that found the scale
    drawn = [stochastic.shared(weights.mean, weights.scale, data.digest["images"], generator) for _ in range(60)]
    moved = torch.stack(drawn) - data.digest["logits"]
    moved -= moved.mean(-1, keepdim=True)
    assert float(moved.square().mean().sqrt()) == pytest.approx(scale, rel=0.15)


def test_a_scale_in_units_of_the_logits_needs_prior_data(data):
    with pytest.raises(ValueError, match="prior-training data"):
        pbb.prior(pbb.PriorSpec(unit="logits"), data.network, None, 0)


def test_every_datum_and_sample_has_weights_of_its_own(data):
    prior = pbb.prior(pbb.PriorSpec(scale=0.05), data.network, None, 0)
    same = data._replace(digest={name: t[:1].expand(6, *t.shape[1:]) for name, t in data.digest.items()},
                         labels=data.labels[:1].expand(6))  # fmt: skip
    problem = pbb.problem(None, prior, same)
    logits = problem.draw(slice(0, 6), 3, torch.Generator().manual_seed(0)).flatten(0, 1)
    assert len(logits.unique(dim=0)) == 18
    shared = problem.shared(torch.Generator().manual_seed(0))
    assert torch.allclose(shared, shared[:1].expand_as(shared), atol=1e-5)


def test_shared_draws_count_as_q_whatever_the_number_of_data(data):
    problem = pbb.problem(None, pbb.prior(pbb.PriorSpec(), data.network, None, 0), data)
    found = integrate(SHARED_MC.name, problem, num_points=7)
    expected = float(kl_inverse(float(found.value), math.log(2 / 0.01) / 7))
    assert upper_of_shared(found, 0.01) == expected
    assert expected > float(found.value) + 0.3  # seven draws prove little


def test_errors_by_fresh_and_by_shared_draws_have_the_same_mean(data):
    problem = pbb.problem(None, pbb.prior(pbb.PriorSpec(scale=0.1), data.network, None, 0), data)
    fresh = integrate("forward_mc", problem, num_points=40)
    shared = integrate(SHARED_MC.name, problem, num_points=400)
    gap = abs(float(fresh.value) - float(shared.value))
    assert gap < 5 * (fresh.standard_error + shared.standard_error)
    assert shared.standard_error > 0


@pytest.mark.parametrize("objective", [name for name in pbb.OBJECTIVES if pbb.OBJECTIVES[name]])
def test_a_fit_lowers_its_objective(data, objective):
    trained = pbb.prior(pbb.PriorSpec(scale=0.05), data.network, None, 0)
    noise = torch.randn(len(trained.mean), generator=torch.Generator().manual_seed(0))
    prior = pbb.Weights(trained.mean + 0.15 * noise, trained.scale)  # with something left to learn
    spec = pbb.Fit(objective=objective, fit_epochs=12, fit_batch=40, learning_rate=0.001)
    fitted = pbb.fit_weights(spec, prior, data, 0, lambda value: None)
    bounds = [step["bound"] for step in fitted.history]
    assert sum(bounds[-3:]) < sum(bounds[:3])
    assert fitted.distribution.kl_from(prior) > 0


def test_a_fit_on_both_parts_uses_the_prior_part(data):
    prior = pbb.prior(pbb.PriorSpec(), data.network, None, 0)
    spec = pbb.Fit(fit_on="both", fit_epochs=1)
    other = data._replace(labels=(data.labels + 1) % 10)
    alone, both = (
        pbb.fit_weights(spec, prior, one, 0, lambda value: None).history[0]["bounded_cross_entropy"]
        for one in (data, data._replace(also=other))
    )
    assert both > alone + 0.1  # the other part's labels are wrong, which only who uses them can notice


def test_cross_entropy_is_bounded_and_right_in_between():
    logits = torch.tensor([[0.0, 0.0], [200.0, 0.0], [0.0, 200.0]])
    labels = torch.tensor([0, 0, 0])
    each = [float(pbb.bounded_cross_entropy(logits[k : k + 1], labels[k : k + 1])) for k in range(3)]
    assert each == pytest.approx([math.log(2) / math.log(1e5), 0.0, 1.0], abs=1e-6)
