"""A labelled set of images that knows its checksum, and the one exception of this package."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.uint8]
Labels = NDArray[np.int64]


class DataError(Exception):
    """Data are missing, damaged, altered or unusable; the message is a sentence for the person who asked for them."""


def checksum(images: Images, labels: Labels, num_test: int) -> str:
    """SHA-256 over dtypes, shapes, the size of the test set and all values, the same on every machine."""
    head = {
        "images": [str(images.dtype), list(images.shape)],
        "labels": [str(labels.dtype), list(labels.shape)],
        "num_test": num_test,
    }
    digest = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
    digest.update(np.ascontiguousarray(images).data)
    digest.update(np.ascontiguousarray(labels, dtype="<i8").data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Summary:
    """What a plan needs to know of a data set; for well-known ones, before they are fetched."""

    name: str
    sha256: str
    shape: tuple[int, int, int, int]
    """(N, channels, height, width)."""
    num_test: int
    num_classes: int

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def num_train(self) -> int:
        """The number of points outside the official test set."""
        return self.shape[0] - self.num_test


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels in the data set's own order, training data first; read-only."""

    name: str
    """Its key in `DATASETS`."""
    images: Images
    """(N, channels, height, width), uint8."""
    labels: Labels
    """(N,), int64, in 0 … c−1."""
    num_test: int
    """The last `num_test` points are the official test set; 0 if there is none, and a split draws one."""
    classes: tuple[str, ...]
    """The names of the c classes. They may contain anything if they are a person's own."""
    sha256: str = field(init=False)
    """`checksum` of the above, computed here, so that it cannot be out of step with the data."""

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        self._require(
            images.dtype == np.uint8 and images.ndim == 4, "images must be uint8 (N, channels, height, width)"
        )
        self._require(images.size > 0, "there are no images")
        self._require(
            labels.dtype == np.int64 and labels.shape == images.shape[:1], "every image needs one int64 label"
        )
        self._require(len(self.classes) >= 2, f"at least two classes are needed, but there are {len(self.classes)}")
        low, high = int(labels.min()), int(labels.max())
        inside = low >= 0 and high < len(self.classes)
        self._require(inside, f"labels must be in 0 … {len(self.classes) - 1}, but are in {low} … {high}")
        self._require(0 <= self.num_test < len(labels), "the test set must leave points to train with")
        for key, array in (("images", images), ("labels", labels)):
            # A view, so that the caller's own array stays writable.
            view = np.asarray(array).view()
            view.flags.writeable = False
            object.__setattr__(self, key, view)
        object.__setattr__(self, "sha256", checksum(images, labels, self.num_test))

    def _require(self, condition: bool, reason: str) -> None:
        if not condition:
            raise DataError(f"The data set {self.name} cannot be used: {reason}.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """The number of classes, c."""
        return len(self.classes)

    @property
    def num_train(self) -> int:
        """The number of points outside the official test set."""
        return len(self.labels) - self.num_test

    @property
    def summary(self) -> Summary:
        """All but the data."""
        num_data, channels, height, width = self.images.shape
        return Summary(self.name, self.sha256, (num_data, channels, height, width), self.num_test, self.num_classes)
