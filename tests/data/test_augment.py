"""Batches are those that (seed, epoch, worker) say, and nothing else."""

import pytest
import torch

from ldaf_bench.data.augment import Augmentation, Batches, augment, cut_out


def images_of(num=40, channels=3, height=6, width=5):
    return torch.randint(256, (num, channels, height, width), dtype=torch.uint8)


def batches(worker=0, num_workers=1, seed=0, flip="random", shift=2, num=40, batch_size=12, padding="zero"):
    images = torch.arange(num, dtype=torch.uint8)[:, None, None, None].expand(-1, 1, 6, 5).contiguous()
    how = Augmentation(shift=shift, padding=padding, flip=flip)
    return Batches(images, torch.arange(num), batch_size, how, seed, worker, num_workers)


def slow_augment(image, shift, flip, padding):
    """One image, pixel by pixel."""
    height, width = image.shape[1:]
    result = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            source_row = row - int(shift[0])
            source_column = (width - 1 - column if flip else column) - int(shift[1])
            inside = 0 <= source_row < height and 0 <= source_column < width
            if padding == "reflect":
                source_row = min(abs(source_row), 2 * (height - 1) - abs(source_row))
                source_column = min(abs(source_column), 2 * (width - 1) - abs(source_column))
            if inside or padding == "reflect":
                result[:, row, column] = image[:, source_row, source_column]
    return result


@pytest.mark.parametrize("padding", ["zero", "reflect"])
def test_shift_and_mirror_are_those_of_the_slow_way(padding):
    torch.manual_seed(0)
    images, chosen = images_of(), torch.randperm(40)[:16]
    shifts, flips = torch.randint(-3, 4, (16, 2)), torch.randint(2, (16,)) == 1
    fast = augment(images, chosen, shifts, flips, padding)
    slow = [slow_augment(images[i], shift, flip, padding) for i, shift, flip in zip(chosen, shifts, flips, strict=True)]
    assert fast.dtype == torch.uint8
    assert torch.equal(fast, torch.stack(slow))


def test_without_augmentation_images_come_out_as_they_are():
    plain = batches(flip="none", shift=0)
    for images, labels in plain.epoch(3):
        assert torch.equal(images, plain.images[labels])


def test_an_epoch_shows_no_image_twice_and_drops_what_does_not_fill_a_batch():
    labels = torch.cat([labels for _, labels in batches().epoch(0)])
    assert len(labels) == 36
    assert len(labels.unique()) == 36


@pytest.mark.parametrize("num_workers", [2, 3, 5])
def test_workers_share_the_global_batch_of_one_worker(num_workers):
    alone = [labels for _, labels in batches().epoch(1)]
    together = [[labels for _, labels in batches(worker, num_workers).epoch(1)] for worker in range(num_workers)]
    for step, whole in enumerate(alone):
        parts = [worker[step] for worker in together]
        assert torch.equal(torch.cat(parts).sort().values, whole.sort().values)
        assert max(len(part) for part in parts) - min(len(part) for part in parts) <= 1


def test_the_same_seed_epoch_and_worker_give_the_same_batches_and_any_other_does_not():
    def drawn(epoch=0, **change):
        return torch.cat([images.flatten(1) for images, _ in batches(**{"num_workers": 2, **change}).epoch(epoch)])

    assert torch.equal(drawn(), drawn())
    for other in (drawn(seed=1), drawn(epoch=1), drawn(worker=1)):
        assert not torch.equal(drawn(), other)


def test_an_epoch_goes_on_from_any_step_with_the_same_batches():
    whole = list(batches().epoch(2))
    for first in range(3):
        rest = list(batches().epoch(2, first))
        assert len(rest) == 3 - first
        for (images, labels), (expected, expected_labels) in zip(rest, whole[first:], strict=True):
            assert torch.equal(images, expected)
            assert torch.equal(labels, expected_labels)


def test_alternating_mirrors_every_image_in_every_other_epoch():
    torch.manual_seed(0)
    pictures = images_of(num=24)
    some = Batches(pictures, torch.arange(24), 24, Augmentation(0, "zero", "alternating"), seed=0)

    def mirrored(epoch):
        ((images, labels),) = some.epoch(epoch)
        flags = torch.tensor([torch.equal(i, pictures[k].flip(-1)) for i, k in zip(images, labels, strict=True)])
        return flags[labels.argsort()]

    first = mirrored(0)
    assert 0 < first.sum() < 24
    assert torch.equal(mirrored(1), ~first)
    assert torch.equal(mirrored(2), first)


def test_what_cannot_be_batched_is_refused():
    with pytest.raises(ValueError, match="lower batch_size"):
        batches(batch_size=41)
    with pytest.raises(ValueError, match="raise batch_size"):
        batches(batch_size=5, num_workers=3)
    with pytest.raises(ValueError, match="lower shift"):
        batches(shift=5)


def test_cutout_paints_one_square_over_and_leaves_the_rest():
    torch.manual_seed(0)
    images, colour = images_of(num=8), torch.tensor([1, 2, 3], dtype=torch.uint8)
    centres = torch.stack([torch.randint(6, (8,)), torch.randint(5, (8,))], dim=1)
    fast = cut_out(images, centres, 3, colour)
    for image, (row, column), found in zip(images, centres.tolist(), fast, strict=True):
        expected = image.clone()
        expected[:, max(0, row - 1) : row + 2, max(0, column - 1) : column + 2] = colour[:, None, None]
        assert torch.equal(found, expected)


def test_cutout_is_drawn_by_the_seed_and_leaves_shifts_and_mirrors_alone():
    images, labels = images_of(num=40), torch.arange(40)
    plain, cut, again = (
        Batches(images, labels, 12, Augmentation(shift=2, flip="random", cutout=cutout), 0) for cutout in (0, 3, 3)
    )
    for (whole, _), (one, _), (other, _) in zip(plain.epoch(1), cut.epoch(1), again.epoch(1), strict=True):
        assert torch.equal(one, other)
        changed = (one != whole).any(1)
        assert 0 < changed.flatten(1).sum(1).max() <= 9
        assert torch.equal(one.movedim(1, -1)[changed], cut.colour.expand(int(changed.sum()), 3))
