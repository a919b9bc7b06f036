r"""Prior, certificate and test points: drawn by a named seed, hashed, and proven disjoint.

A certificate holds for a prior that is independent of the certificate set. So that this is proven and not assumed, a
prior's checkpoint carries `Seen`: the very set of points that it was trained on, one bit for each point of the data
set (7.5 kB for 60,000 points), beside their hash. A recipe (seed and fractions) would be shorter still, but numpy does
not promise the same permutation in every version, it could not describe a prior that saw anything else than one whole
part, and nobody could tell a wrong recipe from a right one without the data. The hash finds damage and mix-ups; it is
no signature, and someone determined to lie about a prior can.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ldaf_bench.data.dataset import DataError
from ldaf_bench.theory.seeds import named_seed

Indices = NDArray[np.int64]
Part = Literal["prior", "certificate", "test"]
PARTS: tuple[Part, ...] = ("prior", "certificate", "test")


class SplitError(DataError, ValueError):
    """A split that is none: its parts overlap, are empty, or lie outside the data."""


class LeakError(DataError):
    """A prior saw points that a certificate or a test rests on, or cannot be shown not to have."""


def hash_indices(dataset: str, indices: Indices) -> str:
    """SHA-256 over a data set's checksum and the indices as little-endian 64-bit integers."""
    return hashlib.sha256(dataset.encode() + np.ascontiguousarray(indices, "<i8").tobytes()).hexdigest()


def _require_indices(name: str, indices: Indices, num_data: int) -> None:
    """Sorted, unique, within the data: what makes two sets comparable, and a hash the hash of a set."""
    if indices.dtype != np.int64 or indices.ndim != 1:
        raise SplitError(f"The {name} indices must be a vector of int64, but are {indices.dtype} of {indices.shape}.")
    if np.any(indices[1:] <= indices[:-1]):
        raise SplitError(f"The {name} indices must be sorted and unique, but are not.")
    if len(indices) and (indices[0] < 0 or indices[-1] >= num_data):
        raise SplitError(f"The {name} indices must be in 0 … {num_data - 1}, but one is not.")


@dataclass(frozen=True, eq=False)
class Splits:
    """Three disjoint sets of points of one data set; one that is not cannot be constructed."""

    prior: Indices
    """What priors are trained on."""
    certificate: Indices
    """What certificates are computed on, and posteriors fitted to; no prior may see it."""
    test: Indices
    """What nothing is fitted to."""
    seed: int
    """The seed that drew it."""
    dataset: str
    """The data set's checksum."""
    num_data: int
    """The number of points of the data set."""

    def __post_init__(self) -> None:
        for part in PARTS:
            indices = np.array(getattr(self, part))
            _require_indices(part, indices, self.num_data)
            if not len(indices):
                raise SplitError(f"The {part} part is empty; change the fractions or bring more data.")
            indices.flags.writeable = False
            object.__setattr__(self, part, indices)
        for one, other in (("prior", "certificate"), ("prior", "test"), ("certificate", "test")):
            shared = np.intersect1d(getattr(self, one), getattr(self, other), assume_unique=True)
            if len(shared):
                raise SplitError(
                    f"The {one} and {other} parts share {len(shared)} points, the first being {shared[0]}."
                )

    def hash(self, part: Part) -> str:
        """The hash of one part's indices, and of the data set that they are of."""
        if part not in PARTS:
            raise SplitError(f"{part!r} is not a part of a split; choose one of {', '.join(PARTS)}.")
        return hash_indices(self.dataset, getattr(self, part))

    def describe(self) -> dict[str, Any]:
        """Sizes and hashes, for a JSON file."""
        parts: dict[str, Any] = {part: {"size": len(getattr(self, part)), "hash": self.hash(part)} for part in PARTS}
        return {"dataset": self.dataset, "num_data": self.num_data, "seed": self.seed, **parts}


class Points(Protocol):
    """What a split needs to know of data: a `Dataset`, or a `Summary` of one."""

    @property
    def sha256(self) -> str:
        """The checksum."""

    @property
    def num_test(self) -> int:
        """The size of the official test set."""

    @property
    def num_train(self) -> int:
        """The number of other points."""

    def __len__(self) -> int: ...


def split(
    dataset: Points, *, seed: int, certificate: float, test: float = 0.2, validation: float | None = None
) -> Splits:
    """Draw a split: uniformly at random, not stratified, so that certificate points are i.i.d.

    `certificate` is a fraction of the points that are not test points, rounded to nearest (CIFAR-10: 0.2 for the
    paper's 40,000 / 10,000; FashionMNIST: 1/6 for its 50,000 / 10,000). The test part is the official test set if there
    is one, and then `test` is not used; otherwise it is that fraction of all points. For one seed, the test part does
    not depend on `certificate`, and smaller certificate parts are contained in larger ones.

    With `validation`, recipes can be compared without a look at certificate or test part: a fraction of the prior part
    takes their places, half of it each, and what is left of the prior part trains.
    """
    fractions = {"certificate": certificate, "test": test, "validation": 0.5 if validation is None else validation}
    for name, fraction in fractions.items():
        if not 0.0 < fraction < 1.0:
            raise SplitError(f"The fraction {name} must be between 0 and 1, but is {fraction}.")
    num_data = len(dataset)
    generator = np.random.Generator(np.random.PCG64(named_seed("split", dataset.sha256, seed)))
    if dataset.num_test:
        drawn = generator.permutation(dataset.num_train)
        test_part = np.arange(dataset.num_train, num_data)
    else:
        test_part, drawn = np.split(generator.permutation(num_data), [round(test * num_data)])
    certificate_part, prior_part = np.split(drawn, [round(certificate * len(drawn))])
    if validation is not None:
        held = round(validation * len(prior_part))
        certificate_part, test_part, prior_part = np.split(prior_part, [held // 2, held])
    prior_part, certificate_part, test_part = (
        np.sort(part).astype(np.int64) for part in (prior_part, certificate_part, test_part)
    )
    return Splits(prior_part, certificate_part, test_part, seed, dataset.sha256, num_data)


@dataclass(frozen=True)
class Seen:
    """The points that a prior was trained on: what its checkpoint carries."""

    dataset: str
    """The checksum of the data set."""
    num_data: int
    """The number of its points."""
    bits: str
    """One bit for each point, the first in the highest bit of the first byte, in base64."""
    hash: str
    """`hash_indices` of the points; that of `Splits.hash("prior")` for a prior that saw just that part."""

    @classmethod
    def of(cls, dataset: str, num_data: int, indices: Indices) -> Self:
        """For any set of sorted indices; an empty one is a prior that saw no data."""
        _require_indices("seen", indices, num_data)
        mask = np.zeros(num_data, bool)
        mask[indices] = True
        bits = base64.b64encode(np.packbits(mask).tobytes()).decode()
        return cls(dataset, num_data, bits, hash_indices(dataset, indices))

    @classmethod
    def of_prior(cls, splits: Splits) -> Self:
        """For a prior that is trained on the prior part."""
        return cls.of(splits.dataset, splits.num_data, splits.prior)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """From what `to_json` gave; a `LeakError` if it is not that."""
        kinds = {"dataset": str, "num_data": int, "bits": str, "hash": str}
        if set(content) != set(kinds) or any(type(content[key]) is not kind for key, kind in kinds.items()):
            raise LeakError("The prior's record of the points that it saw is damaged; train it again.")
        return cls(**content)

    def to_json(self) -> dict[str, Any]:
        """For a JSON file."""
        return asdict(self)

    def indices(self) -> Indices:
        """The points, sorted; a `LeakError` if bits and hash contradict each other."""
        try:
            packed = np.frombuffer(base64.b64decode(self.bits, validate=True), np.uint8)
        except (binascii.Error, ValueError) as error:
            raise LeakError("The prior's record of the points that it saw is damaged; train it again.") from error
        mask = np.unpackbits(packed)
        # Bits beyond the last point would be points that no index can name.
        if len(packed) != (self.num_data + 7) // 8 or mask[self.num_data :].any():
            raise LeakError("The prior's record of the points that it saw has the wrong length; train it again.")
        indices = np.flatnonzero(mask).astype(np.int64)
        if hash_indices(self.dataset, indices) != self.hash:
            raise LeakError("The prior's record of the points that it saw contradicts its hash; train it again.")
        return indices


def received_hash(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> str:
    """SHA-256 of images and labels as a training worker received them."""
    digest = hashlib.sha256(np.ascontiguousarray(images).tobytes())
    digest.update(np.ascontiguousarray(labels, "<i8").tobytes())
    return digest.hexdigest()


class Images(Protocol):
    """What a check of contents needs of a data set."""

    @property
    def images(self) -> NDArray[np.uint8]:
        """(N, channels, height, width)."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """(N,)."""


def require_received(starts: Sequence[Mapping[str, Any]], expected: str) -> None:
    """A `LeakError` unless every training worker received the prior part and nothing else, by its own hash.

    `expected` is `received_hash` of the prior part.
    """
    for number, start in enumerate(starts, 1):
        if set(start["received"]) != {expected}:
            raise LeakError(
                f"A worker of start {number} of the training received other data than the prior part; train it again."
            )


def require_different_images(dataset: Images, splits: Splits) -> None:
    """A `LeakError` if the same image is in two parts: disjoint by number is not disjoint by content."""
    owner: dict[bytes, tuple[str, int]] = {}
    for part in PARTS:
        for index in getattr(splits, part):
            key = hashlib.sha256(dataset.images[index].tobytes()).digest()
            other, first = owner.setdefault(key, (part, int(index)))
            if other != part:
                raise LeakError(
                    f"Images {first} and {index} of the data are the same, but one is in the {other} part and one in "
                    f"the {part} part: remove one of them."
                )


def require_unseen(seen: Seen, splits: Splits) -> None:
    """A `LeakError` unless the prior provably saw no certificate and no test point of this split.

    Another data set's points cannot be compared with these, as the same image may be in both, and are refused.
    """
    if (seen.dataset, seen.num_data) != (splits.dataset, splits.num_data):
        raise LeakError(
            f"The prior was trained on other data (checksum {seen.dataset[:12]}…, here {splits.dataset[:12]}…), so it "
            "cannot be shown to have seen none of the certificate points; train a prior on this data set."
        )
    points = seen.indices()
    for part in ("certificate", "test"):
        shared = np.intersect1d(points, getattr(splits, part), assume_unique=True)
        if len(shared):
            raise LeakError(
                f"The prior saw {len(shared)} of the {len(getattr(splits, part))} {part} points, the first being "
                f"{shared[0]}; certify it with the split that it was trained with, or train it again."
            )
