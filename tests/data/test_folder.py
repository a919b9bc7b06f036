"""People's own images are read exactly, in a known order, or refused with a sentence that names the culprit."""

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from ldaf_bench.data import folder
from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.datasets import load


def pixels(seed, shape=(5, 4, 3)):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def png(array, **options):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG", **options)
    return buffer.getvalue()


def put(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(array))


def stack(seeds):
    return np.stack([pixels(seed) for seed in seeds]).transpose(0, 3, 1, 2)


def test_class_folders_are_read_in_sorted_order(tmp_path):
    for seed, name in enumerate(["b/2.png", "b/10.png", "a/z.PNG", "a/y.png", "a/.hidden", ".git/x.png"]):
        put(tmp_path / name, pixels(seed))
    (tmp_path / "README.txt").write_text("beside the class folders, anything may be")
    dataset = load("folder", tmp_path)
    assert dataset.classes == ("a", "b")
    assert dataset.labels.tolist() == [0, 0, 1, 1]
    assert dataset.num_test == 0
    assert np.array_equal(dataset.images, stack([3, 2, 1, 0]))
    assert load("folder", tmp_path).sha256 == dataset.sha256


def test_train_and_test_folders_give_the_official_test_set(tmp_path):
    for seed, name in enumerate(["test/a/0.png", "test/b/0.png", "train/a/0.png", "train/b/0.png", "train/b/1.png"]):
        put(tmp_path / name, pixels(seed))
    dataset = load("folder", tmp_path)
    assert (dataset.classes, dataset.num_test) == (("a", "b"), 2)
    assert dataset.labels.tolist() == [0, 1, 1, 0, 1]
    assert np.array_equal(dataset.images, stack([2, 3, 4, 0, 1]))


def test_classes_may_be_called_train_and_test(tmp_path):
    put(tmp_path / "train" / "0.png", pixels(0))
    put(tmp_path / "test" / "0.png", pixels(1))
    assert load("folder", tmp_path).classes == ("test", "train")


def test_grey_images_have_one_channel_and_transparency_is_dropped(tmp_path):
    grey = pixels(0, (3, 3))
    for name, image in {
        "a/grey.png": Image.fromarray(grey),
        "a/alpha.png": Image.merge("LA", (Image.fromarray(grey), Image.fromarray(grey))),
        "b/grey.pgm": Image.fromarray(grey),
        "b/grey.bmp": Image.fromarray(grey),
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        image.save(tmp_path / name)
    assert np.array_equal(load("folder", tmp_path).images, np.broadcast_to(grey, (4, 1, 3, 3)))


def test_palettes_and_opacity_become_rgb(tmp_path):
    image = Image.fromarray(pixels(0))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    image.quantize(256).save(tmp_path / "a" / "palette.png")
    image.convert("RGBA").save(tmp_path / "b" / "opaque.png")
    images = load("folder", tmp_path).images
    assert images.shape == (2, 3, 5, 4)
    assert np.array_equal(images[1], pixels(0).transpose(2, 0, 1))


def test_symbolic_links_are_passed_over(tmp_path):
    root = tmp_path / "root"
    put(root / "a" / "0.png", pixels(0))
    put(root / "b" / "0.png", pixels(1))
    put(tmp_path / "elsewhere" / "0.png", pixels(2))
    os.symlink(tmp_path / "elsewhere", root / "c")
    os.symlink(tmp_path / "elsewhere" / "0.png", root / "a" / "1.png")
    os.symlink(root, root / "loop")
    assert np.array_equal(load("folder", root).images, stack([0, 1]))
    (root / "b" / "0.png").unlink()
    os.symlink(tmp_path / "elsewhere" / "0.png", root / "b" / "0.png")
    with pytest.raises(DataError, match=r"b holds no images \(hidden files and symbolic links do not count\)"):
        load("folder", root)


def add(name, content):
    def spoil(root):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)

    return spoil


SPOILED = {
    "a smaller image": (add("b/1.png", png(pixels(0, (4, 4, 3)))), r"b/1\.png is of shape 3 × 4 × 4 .*a/0\.png is of"),
    "a grey image": (add("b/1.png", png(pixels(0, (5, 4)))), r"b/1\.png is of shape 1 × 5 × 4"),
    "16 bits": (add("b/1.png", png(np.zeros((5, 4), np.uint16))), r"b/1\.png has pixels of mode I;16; convert it"),
    "a truncated image": (add("b/1.png", png(pixels(0))[:60]), r"b/1\.png cannot be read as an image"),
    "an empty file": (add("b/1.png", b""), r"b/1\.png cannot be read as an image"),
    "a program as an image": (add("b/1.png", b"%!PS-Adobe-3.0 EPSF-3.0\n"), r"b/1\.png cannot be read as an image"),
    "no image": (add("b/notes.txt", b"x"), r"b/notes\.txt is no image"),
    "a folder in a class folder": (add("b/deep/0.png", png(pixels(0))), "b/deep is no image"),
    "an empty class": (lambda root: (root / "c").mkdir(), "c holds no images"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_what_does_not_belong_is_named(tmp_path, case):
    put(tmp_path / "a" / "0.png", pixels(0))
    put(tmp_path / "b" / "0.png", pixels(1))
    spoil, reason = SPOILED[case]
    spoil(tmp_path)
    with pytest.raises(DataError, match=reason):
        load("folder", tmp_path)


def test_one_class_is_not_enough(tmp_path):
    put(tmp_path / "a" / "0.png", pixels(0))
    with pytest.raises(DataError, match="must hold at least two class folders, but holds 1"):
        load("folder", tmp_path)


def test_a_class_without_a_counterpart_in_the_test_set_is_named(tmp_path):
    for name in ("train/a", "train/b", "test/a"):
        put(tmp_path / name / "0.png", pixels(0))
    with pytest.raises(DataError, match="same class folders, but b is in one only"):
        load("folder", tmp_path)


def test_pillows_guard_against_bombs_stays_on(tmp_path, monkeypatch):
    put(tmp_path / "a" / "0.png", pixels(0))
    put(tmp_path / "b" / "0.png", pixels(1))
    for limit in (15, 5):  # pillow warns above the limit, and raises above twice the limit
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(DataError, match=r"a/0\.png cannot be read .*decompression bomb"):
            load("folder", tmp_path)


def table(path, **columns):
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


ENCODED = [png(pixels(seed)) for seed in range(5)]
STRUCT = [{"bytes": content, "path": f"{row}.png"} for row, content in enumerate(ENCODED)]


@pytest.mark.parametrize(
    "images", [ENCODED, STRUCT, pa.array(ENCODED, pa.large_binary())], ids=["bytes", "struct", "large"]
)
@pytest.mark.parametrize(
    ("labels", "classes"),
    [(["cat", "ant", "cat", "bee", "ant"], ("ant", "bee", "cat")), ([12, 7, 12, 9, 7], ("7", "9", "12"))],
    ids=["strings", "integers"],
)
def test_parquet_is_read_back_exactly(tmp_path, monkeypatch, images, labels, classes):
    monkeypatch.setattr(folder, "BATCH", 2)
    dataset = load("folder", table(tmp_path / "x.parquet", image=images, label=labels, other=[0] * 5))
    assert dataset.classes == classes
    assert dataset.labels.tolist() == [2, 0, 2, 1, 0]
    assert dataset.num_test == 0
    assert np.array_equal(dataset.images, stack(range(5)))


def test_a_split_column_gives_the_official_test_set(tmp_path):
    split = ["test", "train", "train", "test", "train"]
    dataset = load("folder", table(tmp_path / "x.parquet", image=ENCODED, label=[0, 1, 0, 1, 1], split=split))
    assert dataset.num_test == 2
    assert dataset.labels.tolist() == [1, 0, 1, 0, 1]
    assert np.array_equal(dataset.images, stack([1, 2, 4, 0, 3]))


def test_categories_are_strings(tmp_path):
    labels = pa.array(["b", "a", "b", "a", "a"]).dictionary_encode()
    assert load("folder", table(tmp_path / "x.parquet", image=ENCODED, label=labels)).labels.tolist() == [1, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"label": None}, "has no column label; its columns are image"),
        ({"image": None}, "has no column image"),
        ({"label": [0, 1, None, 1, 0]}, "Row 2 of .* has the label None"),
        ({"label": [0.5, 1.0, 0.0, 1.0, 0.0]}, r"Row 0 of .* has the label 0\.5; labels must be all integers or"),
        ({"label": [1] * 5}, "at least two classes"),
        ({"split": ["train"] * 4 + ["valid"]}, "Row 4 of .* has the split 'valid'; it must be train or test"),
        ({"split": ["test"] * 5}, "leave points to train with"),
        ({"image": [*ENCODED[:3], None, ENCODED[4]]}, "Row 3 of .* holds no encoded image"),
        ({"image": [*STRUCT[:3], {"bytes": None, "path": "x"}, STRUCT[4]]}, "Row 3 of .* holds no encoded image"),
        ({"image": ["a"] * 5}, "Row 0 of .* holds no encoded image"),
        ({"image": [*ENCODED[:4], b"no"]}, "Row 4 of .* cannot be read as an image"),
        ({"image": [*ENCODED[:4], png(pixels(0, (2, 2)))]}, "Row 4 of .* is of shape 1 × 2 × 2 .*Row 0 of"),
        ({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}, "holds no rows"),
    ],
)
def test_parquet_files_that_cannot_be_used_are_refused(tmp_path, change, reason):
    columns = {"image": ENCODED, "label": [0, 1, 0, 1, 0], **change}
    path = table(tmp_path / "x.parquet", **{name: value for name, value in columns.items() if value is not None})
    with pytest.raises(DataError, match=reason):
        load("folder", path)


def test_a_damaged_parquet_file_is_refused(tmp_path):
    path = table(tmp_path / "x.parquet", image=ENCODED, label=[0, 1, 0, 1, 0])
    content = path.read_bytes()
    for damaged in (b"", content[:-9], b"no parquet", content[:100] + content[120:]):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"x\.parquet"):
            load("folder", path)
