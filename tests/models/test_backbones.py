"""Every entry of BACKBONES works on grey and colour images, and each is what its name says."""

import pytest
import torch

from ldaf_bench.models.backbones import BACKBONES, ResNet18, SpeedNet, Whitening

SHAPES = [(1, 28, 28), (3, 32, 32)]


@pytest.mark.parametrize("shape", SHAPES, ids=["grey 28", "colour 32"])
@pytest.mark.parametrize("name", BACKBONES)
def test_images_become_vectors_and_every_trained_weight_gets_a_gradient(name, shape):
    torch.manual_seed(0)
    backbone = BACKBONES[name](shape[0], shape[1:])
    images = torch.randn(4, *shape)
    backbone.prepare(images)
    vectors = backbone(images)
    assert vectors.shape == (4, backbone.width)
    vectors.square().sum().backward()
    for key, parameter in backbone.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None), key
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), key
    assert sum(float(p.grad.abs().sum()) > 0 for p in backbone.parameters() if p.grad is not None) >= 4


@pytest.mark.parametrize("name", BACKBONES)
def test_in_eval_mode_an_image_does_not_feel_its_batch(name):
    torch.manual_seed(0)
    backbone = BACKBONES[name](1, (28, 28))
    images = torch.randn(6, 1, 28, 28)
    backbone.prepare(images)
    backbone(images)
    backbone.eval()
    with torch.no_grad():
        torch.testing.assert_close(backbone(images)[2:3], backbone(images[2:3]), rtol=1e-4, atol=1e-5)


def test_resnet18_has_the_papers_stem_and_size():
    network = ResNet18(3, (32, 32)).network
    assert network.conv1.kernel_size == (3, 3)
    assert network.conv1.stride == (1, 1)
    # 11.17 million parameters without the linear layer, as the CIFAR variant of ResNet18 has
    assert sum(p.numel() for p in network.parameters()) == 11_168_832
    assert network.layer1(network.maxpool(torch.zeros(1, 64, 32, 32))).shape == (1, 64, 32, 32)


def test_whitening_makes_patches_white():
    torch.manual_seed(0)
    smooth = torch.nn.functional.avg_pool2d(torch.randn(200, 3, 17, 17), 3, stride=1)
    layer = Whitening(3, 2)
    layer.fit(smooth, floor=0.0)
    with torch.no_grad():
        out = layer(smooth)[:, :12].movedim(1, -1).flatten(0, -2)
    torch.testing.assert_close(out.mT @ out / len(out), torch.eye(12), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(layer.weight[:12], -layer.weight[12:])
    assert not layer.weight.requires_grad


def test_a_wide_speednet_is_a_speednet_with_more_channels():
    narrow, wide = BACKBONES["speednet"](3, (32, 32)), BACKBONES["speednet_wide"](3, (32, 32))
    assert [name for name, _ in wide.named_parameters()] == [name for name, _ in narrow.named_parameters()]
    channels = [
        [m.out_channels for m in net.groups.modules() if isinstance(m, torch.nn.Conv2d)] for net in (narrow, wide)
    ]
    assert channels == [[64, 64, 256, 256, 256, 256], [128, 128, 384, 384, 384, 384]]


def test_speednet_says_what_to_use_for_images_too_small_for_it():
    with pytest.raises(ValueError, match="use tinynet"):
        SpeedNet(1, (8, 8))
