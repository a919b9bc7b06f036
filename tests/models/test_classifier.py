"""A classifier is a backbone with a head: every entry of HEADS, and the flow head as the paper has it."""

import pytest
import torch

from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import HEADS, FlowHead, LinearHead, head_from
from ldaf_bench.theory.flows import FLOWS, forward
from tests.networks import head_of

every_head = pytest.mark.parametrize("kind", HEADS)


def classifier(head, shape=(1, 8, 8)):
    torch.manual_seed(0)
    model = Classifier("tinynet", head, shape, 4)
    model.prepare(torch.randint(256, (50, *shape), dtype=torch.uint8))
    return model


def flow_head(flow="daf"):
    return FlowHead(flow=flow, num_nodes=6, horizon=0.7)


def some_images(count=5):
    return torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8)


@every_head
def test_every_head_makes_logits_and_all_of_it_is_trained(kind):
    model = classifier(head_of(kind))
    logits = model(some_images(8))
    assert logits.shape == (8, 4)
    assert logits.dtype == torch.float32
    torch.nn.functional.cross_entropy(logits, torch.arange(8) % 4).backward()
    for name, parameter in model.head.named_parameters():
        assert parameter.grad.abs().sum() > 0, name
    assert model.get_parameter("backbone.layers.0.weight").grad.abs().sum() > 0


@every_head
def test_every_head_comes_back_from_json_and_refuses_what_is_too_large_with_a_sentence(kind):
    head = head_of(kind)
    assert HEADS[kind].kind == kind
    assert head_from(head.to_json()) == head == head_from(head)
    assert head.refusal(10) == ""
    with pytest.raises(ValueError, match="head must be one of"):
        head_from({**head.to_json(), "kind": "hydra"})


def test_a_flow_too_large_for_memory_is_refused_by_its_number_of_entries():
    assert "use sflow" in FlowHead(num_nodes=5000).refusal(10)
    assert FlowHead(flow="sflow", num_nodes=5000).refusal(10) == ""


@pytest.mark.parametrize("flow", FLOWS)
def test_logits_are_those_of_the_flow_on_the_features(flow):
    model = classifier(flow_head(flow)).eval()
    images = some_images()
    features = model.head.features(model.vectors(images), model.backbone.scale)
    assert features.shape == (5, 6, 4)
    torch.testing.assert_close(model(images), forward(flow, model.head.parameter, features, 0.7))
    assert model.head.parameter.shape == FLOWS[flow].shape(6, 4)


@pytest.mark.parametrize("flow", FLOWS)
def test_network_and_flow_are_trained_end_to_end(flow):
    model = classifier(flow_head(flow))
    torch.nn.functional.cross_entropy(model(some_images(8)), torch.arange(8) % 4).backward()
    for name in ("head.weight", "head.linear.weight", "backbone.layers.0.weight"):
        assert model.get_parameter(name).grad.abs().sum() > 0, name


def test_the_linear_head_is_a_linear_layer_on_the_vectors():
    model = classifier(LinearHead()).eval()
    images = some_images()
    expected = model.head.linear(model.vectors(images)) * model.backbone.scale
    torch.testing.assert_close(model(images), expected)


def test_prepared_images_have_mean_0_and_deviation_1_per_channel():
    torch.manual_seed(0)
    images = (torch.randn(300, 3, 16, 16) * torch.tensor([10.0, 20, 30]).view(3, 1, 1) + 120).clamp(0, 255).byte()
    model = Classifier("tinynet", LinearHead(), (3, 16, 16), 4)
    model.prepare(images)
    normalized = model.normalize(images)
    torch.testing.assert_close(normalized.mean((0, 2, 3)), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(normalized.std((0, 2, 3)), torch.ones(3), rtol=1e-3, atol=0)


def test_channels_that_never_change_do_not_divide_by_zero():
    model = Classifier("tinynet", LinearHead(), (1, 8, 8), 4)
    model.prepare(torch.full((10, 1, 8, 8), 7, dtype=torch.uint8))
    assert model.normalize(torch.full((1, 1, 8, 8), 9, dtype=torch.uint8)).isfinite().all()


@every_head
def test_weights_carry_everything_that_prepare_computed(kind):
    model, other = classifier(head_of(kind)), Classifier("tinynet", head_of(kind), (1, 8, 8), 4)
    other.load_state_dict(model.state_dict())
    images = some_images()
    assert torch.equal(model.eval()(images), other.eval()(images))


@pytest.mark.parametrize("views", ["mirrored", "shifted"])
def test_views_are_averaged_in_eval_mode_only(views):
    torch.manual_seed(0)
    model = Classifier("tinynet", LinearHead(), (1, 8, 8), 4, views)
    images = some_images()
    model.prepare(images)
    model.eval()
    with torch.no_grad():
        seen = [images, *(shifted(images, by) for by in ((1, 1), (-1, -1)))]
        means = [(plain_vectors(model, one) + plain_vectors(model, one.flip(-1))) / 2 for one in seen]
        expected = means[0] if views == "mirrored" else means[0] / 2 + (means[1] + means[2]) / 4
        assert torch.allclose(model.vectors(images), expected, atol=1e-5)
        # A diagonal shift of the mirror image is along the other diagonal.
        if views == "mirrored":
            assert torch.allclose(model(images), model(images.flip(-1)), atol=1e-5)
        model.train()
        assert not torch.allclose(model(images), model(images.flip(-1)), atol=1e-3)  # training sees one view


def plain_vectors(model, images):
    return model.backbone(model.normalize(images))


def shifted(images, by):
    """By index arithmetic: what enters at the border is the image reflected there."""
    height, width = images.shape[-2:]
    rows, columns = ([abs(k - step) if k - step < size else 2 * (size - 1) - (k - step) for k in range(size)]
                     for step, size in zip(by, (height, width), strict=True))  # fmt: skip
    return images[..., rows, :][..., columns]
