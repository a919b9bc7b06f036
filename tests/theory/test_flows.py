"""Every entry of FLOWS: equal to its dense twin, differentiable, trainable, strict about its inputs."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ldaf_bench.theory.flows import FLOWS, forward, initial_parameter
from tests import reference
from tests.cases import classes, nodes, normal, parameter, rng, seeds

every_flow = pytest.mark.parametrize("flow", FLOWS)


@every_flow
@given(n=nodes, c=classes, seed=seeds, horizon=st.sampled_from([0.5, 1.0, 2.5]))
def test_logits_from_any_start_equal_the_dense_solution(flow, n, c, seed, horizon):
    omega, features = parameter(flow, n, c, seed, scale=3.0), 2 * normal(3, n, c, seed=seed + 1)
    starts = normal(3, 2, n, c, seed=seed + 2)
    starts = starts - starts.mean(-1, keepdim=True)
    logits, error = FLOWS[flow].integrate(omega, features, starts, horizon, None)
    for k in range(3):
        matrix, shift = reference.class_map(flow, omega.numpy(), features[k].numpy(), horizon)
        truth = starts[k].flatten(1).numpy() @ matrix.T + shift
        np.testing.assert_allclose(logits[k].numpy(), truth, rtol=1e-10, atol=1e-10)
    zero = forward(flow, omega, features, horizon)
    np.testing.assert_allclose(zero[-1].numpy(), shift, rtol=1e-10, atol=1e-10)
    assert (error < 1e-9).all()


@every_flow
def test_gradients_in_features_and_parameter_equal_finite_differences(flow):
    weight = normal(*FLOWS[flow].shape(3, 3), seed=1).requires_grad_()
    features = normal(2, 3, 3, seed=2).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda w, f: forward(flow, FLOWS[flow].constrain(w), f, 1.5), (weight, features), eps=1e-6, atol=1e-7
    )


@every_flow
def test_flow_is_trainable_end_to_end(flow):
    generator = rng(3)
    weight = torch.randn(6, 12, generator=generator) * 0.1
    omega = initial_parameter(flow, 4, 3, generator=generator)
    inputs = torch.randn(60, 6, generator=generator)
    labels = (inputs[:, :3] * inputs[:, 3:]).argmax(-1)  # out of reach of the linear layer
    leaves = [weight.requires_grad_(), omega.requires_grad_()]
    optimizer = torch.optim.Adam(leaves, lr=0.05)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        logits = forward(flow, FLOWS[flow].constrain(omega), (inputs @ weight).view(-1, 4, 3))
        loss = torch.nn.functional.cross_entropy(logits, labels)
        loss.backward()
        assert omega.grad is not None
        assert omega.grad.norm() > 0
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize("flow", ["daf", "sflow"])
@given(n=nodes, c=classes, seed=seeds, s=st.floats(0.2, 2.0), t=st.floats(0.2, 2.0))
def test_rows_obey_the_semigroup_of_the_generator(flow, n, c, seed, s, t):
    omega, features = parameter(flow, n, c, seed, scale=3.0), 2 * normal(1, n, c, seed=seed + 1)
    a, b = reference.generator(flow, omega.numpy(), features[0].numpy())
    further = reference.propagate(a.T, b, s)[0]
    once, later = (FLOWS[flow].rows(omega, features, horizon, None).value[0].flatten(1) for horizon in (t, s + t))
    np.testing.assert_allclose(later.numpy(), once.numpy() @ further.T, rtol=1e-9, atol=1e-9)


@every_flow
@pytest.mark.parametrize("scale", [0.5, 2.0, 6.0, 30.0])
def test_reported_errors_cover_float32_rounding(flow, scale):
    omega, features = parameter(flow, 20, 6, seed=9, scale=3.0).float(), scale * normal(32, 20, 6, seed=10).float()
    starts = normal(32, 2, 20, 6, seed=11).float()
    for start in (None, starts):
        logits, error = FLOWS[flow].integrate(omega, features, start, 1.5, None)
        double = None if start is None else start.double()
        exact, _ = FLOWS[flow].integrate(omega.double(), features.double(), double, 1.5, None)
        assert ((logits - exact).abs().amax(-1) <= error).all()
    rows, error = FLOWS[flow].rows(omega, features, 1.5, None)
    exact, _ = FLOWS[flow].rows(omega.double(), features.double(), 1.5, None)
    assert ((rows - exact).flatten(-2).norm(dim=-1) <= error).all()
    assert (error < 1e-4 * max(1, scale)).all()


def test_runs_in_full_precision_inside_autocast():
    omega, features = parameter("daf", 4, 3, seed=12).float(), normal(5, 4, 3, seed=13).float()
    plain = forward("daf", omega, features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(forward("daf", omega, features), plain)


def test_sflow_is_daf_with_a_kronecker_product():
    weight = parameter("sflow", 4, 3, seed=4)
    omega = torch.einsum("ij,kl->ikjl", weight, torch.eye(3, dtype=torch.float64))
    features = normal(5, 4, 3, seed=5)
    torch.testing.assert_close(forward("sflow", weight, features), forward("daf", omega, features))


def test_confident_features_give_finite_logits_and_gradients():
    features = (200 * normal(4, 3, 3, seed=6)).float().requires_grad_()
    omega = parameter("daf", 3, 3, seed=7).float().requires_grad_()
    forward("daf", omega, features).sum().backward()
    assert torch.isfinite(features.grad).all()
    assert torch.isfinite(omega.grad).all()


@every_flow
def test_initial_parameter_is_valid_and_of_unit_scale(flow):
    omega = initial_parameter(flow, 20, 5, generator=rng(8))
    FLOWS[flow].check(omega)
    assert omega.shape == FLOWS[flow].shape(20, 5)
    if flow != "linear":
        size = int(omega.numel() ** 0.5)
        assert 0.5 < torch.linalg.eigvalsh(omega.reshape(size, size)).abs().max() < 1.5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"flow": "dfa"}, r"flow must be one of daf, linear, sflow \(did you mean daf\?\), but is 'dfa'"),
        ({"features": torch.zeros(2, 3)}, "features must be of shape"),
        ({"features": torch.full((2, 4, 3), torch.nan)}, "features must be finite everywhere"),
        ({"parameter": torch.zeros(3, 3, 4, 3)}, "omega must be of shape"),
        ({"parameter": torch.arange(144.0).view(4, 3, 4, 3)}, "omega must be symmetric"),
        ({"parameter": torch.full((4, 3, 4, 3), torch.inf)}, "omega must be finite"),
        ({"features": [[0.0]]}, "features must be a torch tensor, but is a list"),
        ({"features": torch.zeros(0, 4, 3)}, "features must be of at least one datum"),
        ({"features": torch.zeros(2, 4, 1)}, "features must be of at least one datum, one node and two classes"),
        ({"features": torch.zeros(2, 4, 3, dtype=torch.float16)}, "features must be float32 or float64"),
        ({"features": torch.zeros(2, 4, 3, dtype=torch.float64)}, "omega must be of the features' dtype"),
        ({"horizon": 0.0}, "horizon must be positive"),
        ({"horizon": float("nan")}, "horizon must be positive"),
        ({"tolerance": -1.0}, "tolerance must be positive"),
    ],
)
def test_bad_input_is_refused_by_name(change, words):
    good = {"flow": "daf", "parameter": torch.zeros(4, 3, 4, 3), "features": torch.randn(2, 4, 3), "horizon": 1.0}
    with pytest.raises(ValueError, match=words):
        forward(**{**good, **change})
