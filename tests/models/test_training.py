"""Training learns, goes on where it stopped to the last bit, and stops when it diverges."""

import dataclasses
import math

import pytest
import torch

from ldaf_bench.models.heads import HEADS, FlowHead
from ldaf_bench.models.network import build
from ldaf_bench.models.training import DivergenceError, precision_on, weights_of
from ldaf_bench.theory.arguments import NotFiniteError
from ldaf_bench.theory.flows import FLOWS
from tests.networks import CONFIG, changed, digits_splits, head_of, training_of

HEADS_AND_FLOWS = {
    **{kind: head_of(kind) for kind in HEADS},
    **{flow: FlowHead(flow=flow, num_nodes=5) for flow in FLOWS},
}


def weights(training):
    return {name: value.clone() for name, value in training.bare.state_dict().items()}


def run(training, steps=None):
    for _ in training.run():
        if training.step == steps:
            break
    return training


@pytest.mark.parametrize("head", dict.fromkeys(HEADS_AND_FLOWS.values()), ids=lambda head: str(head.to_json()))
def test_every_head_and_flow_learns_the_digits(head):
    training = run(training_of(changed(head=head, recipe={"epochs": 8})))
    dataset, splits = digits_splits()
    with torch.no_grad():
        logits = training.bare.eval()(torch.from_numpy(dataset.images[splits.test]))
    error = (logits.argmax(1).numpy() != dataset.labels[splits.test]).mean()
    assert error < 0.06
    assert training.curve[-1].mean_loss < 0.3 * training.curve[0].mean_loss
    assert [row.epoch for row in training.curve] == list(range(8))


@pytest.mark.parametrize("stop", [1, 17, 20, 25])
def test_a_run_that_was_stopped_ends_at_the_same_weights(stop):
    config = changed(recipe={"epochs": 2, "shift": 1, "flip": "alternating", "momentum": 0.8, "nesterov": True,
                             "average": 0.4})  # fmt: skip
    whole = run(training_of(config))
    snapshot = run(training_of(config), steps=stop).snapshot()
    later = training_of(config)
    later.restore(snapshot.tensors, snapshot.state)
    assert later.step == stop
    run(later)
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(later)[name]), name
    for name, value in weights_of(whole.snapshot().tensors).items():
        assert torch.equal(value, weights_of(later.snapshot().tensors)[name]), name
    for row, other in zip(whole.curve, later.curve, strict=True):
        assert (row.epoch, row.steps, row.loss, row.correct, row.data) == (
            other.epoch, other.steps, other.loss, other.correct, other.data,
        )  # fmt: skip


def test_averaged_weights_are_the_mean_over_the_last_steps():
    config = changed(recipe={"epochs": 2, "average": 0.25})
    training, seen = training_of(config), []
    for _ in training.run():
        seen.append(weights(training))
    last = seen[-round(0.25 * len(seen)) :]
    found = weights_of(training.snapshot().tensors)
    assert found.keys() == seen[0].keys()
    for name in ("head.linear.weight", "backbone.layers.1.running_mean"):
        expected = torch.stack([one[name] for one in last]).mean(0)
        torch.testing.assert_close(found[name], expected, rtol=1e-4, atol=1e-6)
        assert not torch.equal(found[name], seen[-1][name])
    plain = run(training_of(changed(recipe={"epochs": 1})))
    assert all(torch.equal(value, weights(plain)[name]) for name, value in weights_of(plain.snapshot().tensors).items())


def test_a_snapshot_does_not_move_with_the_training_that_it_came_from():
    training = run(training_of(changed(recipe={"epochs": 1})), steps=3)
    snapshot = training.snapshot()
    before = {name: value.clone() for name, value in snapshot.tensors.items()}
    run(training)
    assert all(torch.equal(before[name], value) for name, value in snapshot.tensors.items())
    assert snapshot.state["step"] == 3


def test_the_seed_decides_everything():
    one, same, other = (run(training_of(changed(seed=seed, recipe={"epochs": 1}))) for seed in (0, 0, 1))
    assert all(torch.equal(value, weights(same)[name]) for name, value in weights(one).items())
    assert not torch.equal(weights(one)["head.linear.weight"], weights(other)["head.linear.weight"])


def test_building_a_model_leaves_the_global_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(())
    torch.manual_seed(5)
    build(CONFIG, (1, 8, 8), 10)
    assert torch.rand(()) == expected


@pytest.mark.parametrize("kind", HEADS)
def test_a_loss_that_is_not_finite_stops_with_a_sentence(kind):
    config = changed(head=head_of(kind), recipe={"learning_rate": 1e30, "epochs": 1, "warmup": 0})
    with pytest.raises(DivergenceError, match=r"in step \d+ of .* lower the recipe's learning_rate"):
        run(training_of(config))


@pytest.mark.parametrize("num_workers", [2, 4])
def test_workers_gradients_average_to_the_gradient_of_the_global_batch(monkeypatch, num_workers):
    """Also where the batch of 63 is no multiple of the workers; without BatchNorm, which is each worker's own."""
    config = changed(recipe={"epochs": 1, "batch_size": 63, "momentum": 0.0, "weight_decay": 0.0, "warmup": 0.0})

    def gradients(worker, workers):
        monkeypatch.setattr("torch.distributed.all_reduce", lambda told: None)
        training = training_of(config)
        training.batches = dataclasses.replace(training.batches, worker=worker, num_workers=workers)
        training.model.eval()
        monkeypatch.setattr(training.model, "train", lambda: None)
        next(training.run())
        return {name: p.grad for name, p in training.bare.named_parameters() if p.grad is not None}

    whole = gradients(0, 1)
    parts = [gradients(worker, num_workers) for worker in range(num_workers)]
    assert "head.weight" in whole
    for name, expected in whole.items():
        average = torch.stack([part[name] for part in parts]).mean(0)
        torch.testing.assert_close(average, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("error", [ArithmeticError("The Krylov space grew."), NotFiniteError("features")])
def test_a_flow_that_breaks_down_on_another_worker_stops_this_one_too(monkeypatch, error):
    training = training_of(changed(recipe={"epochs": 1}))
    training.batches = dataclasses.replace(training.batches, num_workers=2)
    told_here = []

    def all_reduce(told):
        told_here.append(told.clone())
        told += torch.tensor([math.nan, 0.0, 0.0])  # what the other one says

    monkeypatch.setattr("torch.distributed.all_reduce", all_reduce)
    with pytest.raises(DivergenceError):
        run(training)
    assert told_here[0].isfinite().all()

    def broken(images):
        raise error

    monkeypatch.setattr(training.model, "forward", broken)
    with pytest.raises(DivergenceError):
        run(training)
    assert told_here[1][0].isnan()


def test_the_loss_is_the_mean_cross_entropy_before_each_step():
    config = changed(recipe={"epochs": 1})
    training = training_of(config)
    images, labels = next(iter(training.batches.epoch(0)))
    with torch.no_grad():
        expected = torch.nn.functional.cross_entropy(training.bare.train()(images), labels)
    again = run(training_of(config), steps=1)
    assert math.isclose(again.curve[0].mean_loss, float(expected), rel_tol=1e-5)


def pretend(monkeypatch, **capabilities):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: capabilities)


def test_bfloat16_is_used_where_the_processor_has_it_and_nowhere_else(monkeypatch):
    half, full = (changed(recipe={"precision": name}).recipe for name in ("bfloat16", "float32"))
    cpu = torch.device("cpu")
    for capability in ("avx512_bf16", "amx_bf16", "bf16"):
        pretend(monkeypatch, **{capability: True})
        assert precision_on(cpu, half) == "bfloat16"
        assert precision_on(cpu, full) == "float32"
    pretend(monkeypatch, avx2=True, avx512_bf16=False)
    assert precision_on(cpu, half) == "float32"


def test_a_network_learns_in_bfloat16_and_its_weights_stay_in_float32(monkeypatch):
    pretend(monkeypatch, avx512_bf16=True)
    config = changed(recipe={"epochs": 4, "precision": "bfloat16"})
    training, other = run(training_of(config)), run(training_of(changed(recipe={"epochs": 4})))
    assert {value.dtype for value in weights(training).values() if value.is_floating_point()} == {torch.float32}
    assert training.curve[-1].accuracy > 0.9
    assert training.curve[-1].mean_loss != other.curve[-1].mean_loss
    assert training.curve[-1].mean_loss == pytest.approx(other.curve[-1].mean_loss, rel=0.3)


def test_the_first_steps_see_smaller_images(monkeypatch):
    training = training_of(changed(recipe={"epochs": 2, "small": 0.5, "small_size": 0.75}))
    seen = []
    forward = training._forward

    def watched(images, labels):
        seen.append(tuple(images.shape[-2:]))
        return forward(images, labels)

    monkeypatch.setattr(training, "_forward", watched)
    run(training)
    half = training.num_steps // 2
    assert seen == [(6, 6)] * half + [(8, 8)] * half


def test_smaller_images_keep_their_brightness():
    training = training_of(changed(recipe={"small": 0.5}))
    images = torch.randint(256, (5, 1, 8, 8), dtype=torch.uint8)
    small = training._resized(images)
    assert small.shape == (5, 1, 6, 6)
    assert torch.allclose(small.mean((1, 2, 3)), images.float().mean((1, 2, 3)), rtol=0.1)
    assert training_of(CONFIG)._resized(images) is images
