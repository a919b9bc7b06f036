"""The LDAF classifier is features and a flow; the baseline the same without the flow."""

import pytest
import torch

from ldaf_bench.models.classifier import Classifier, LDAFClassifier
from ldaf_bench.theory.flows import FLOWS, forward


def classifier(flow="daf", num_nodes=6, shape=(1, 8, 8)):
    torch.manual_seed(0)
    model = LDAFClassifier("tinynet", shape, 4, num_nodes, flow, 0.7)
    model.prepare(torch.randint(256, (50, *shape), dtype=torch.uint8))
    return model


@pytest.mark.parametrize("flow", FLOWS)
def test_logits_are_those_of_the_flow_on_the_features(flow):
    model = classifier(flow).eval()
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    features = model.features(images)
    assert features.shape == (5, 6, 4)
    torch.testing.assert_close(model(images), forward(flow, model.flow_parameter, features, 0.7))
    assert model.flow_parameter.shape == FLOWS[flow].shape(6, 4)


@pytest.mark.parametrize("flow", FLOWS)
def test_network_and_flow_are_trained_end_to_end(flow):
    model = classifier(flow)
    images, labels = torch.randint(256, (8, 1, 8, 8), dtype=torch.uint8), torch.arange(8) % 4
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    for name in ("flow_weight", "linear.weight", "backbone.layers.0.weight"):
        assert model.get_parameter(name).grad.abs().sum() > 0, name


def test_prepared_images_have_mean_0_and_deviation_1_per_channel():
    torch.manual_seed(0)
    images = (torch.randn(300, 3, 16, 16) * torch.tensor([10.0, 20, 30]).view(3, 1, 1) + 120).clamp(0, 255).byte()
    model = Classifier("tinynet", (3, 16, 16), 4)
    model.prepare(images)
    normalized = model.normalize(images)
    torch.testing.assert_close(normalized.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(normalized.std((0, 2, 3)), torch.ones(3), rtol=1e-3, atol=0)


def test_channels_that_never_change_do_not_divide_by_zero():
    model = Classifier("tinynet", (1, 8, 8), 4)
    model.prepare(torch.full((10, 1, 8, 8), 7, dtype=torch.uint8))
    assert model.normalize(torch.full((1, 1, 8, 8), 9, dtype=torch.uint8)).isfinite().all()


def test_weights_carry_everything_that_prepare_computed():
    model, other = classifier(), LDAFClassifier("tinynet", (1, 8, 8), 4, 6, "daf", 0.7)
    other.load_state_dict(model.state_dict())
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    assert torch.equal(model.eval()(images), other.eval()(images))
