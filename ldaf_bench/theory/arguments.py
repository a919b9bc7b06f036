"""Refusals: every public function of `theory` checks what it is given, in one vocabulary.

Each function returns nothing and raises `ValueError` with a sentence that names the argument,
says what was expected and what came instead.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor


class NotFiniteError(ValueError):
    """A tensor holds NaN or infinity: the one refusal that training expects and reports in its own words."""


def require(condition: bool, name: str, expected: str, got: object) -> None:
    """Raise `ValueError` unless `condition` holds."""
    if not condition:
        raise ValueError(f"{name} must be {expected}, but is {got}.")


def require_shape(name: str, tensor: Tensor, shape: Sequence[int | None]) -> None:
    """The tensor has this shape; `None` stands for any length."""
    require(isinstance(tensor, Tensor), name, "a torch tensor", f"a {type(tensor).__name__}")
    expected = tuple(shape)
    fits = tensor.ndim == len(expected) and all(
        want is None or have == want for have, want in zip(tensor.shape, expected, strict=True)
    )
    wanted = "(" + ", ".join("any" if want is None else str(want) for want in expected)
    wanted += ",)" if len(expected) == 1 else ")"
    require(fits, name, f"of shape {wanted}", f"of shape {tuple(tensor.shape)}")


def require_finite(name: str, tensor: Tensor) -> None:
    """No entry is NaN or infinite."""
    # A finite sum proves finite entries at a quarter of the cost of looking at each of them.
    if not math.isfinite(float(tensor.detach().sum())):
        count = int((~torch.isfinite(tensor)).sum())
        if count:
            raise NotFiniteError(f"{name} must be finite everywhere, but is NaN or infinite in {count} entries.")


def require_symmetric(name: str, matrix: Tensor) -> None:
    """The matrix equals its transpose up to rounding."""
    gap = float((matrix - matrix.mT).detach().abs().max())
    scale = float(matrix.detach().abs().max())
    tolerance = 16 * torch.finfo(matrix.dtype).eps * scale
    require(gap <= tolerance, name, "symmetric", f"asymmetric by {gap:.3g} at scale {scale:.3g}")


def require_fraction(name: str, value: float) -> None:
    """The value lies strictly between 0 and 1."""
    require(0.0 < value < 1.0, name, "in the open interval (0, 1)", value)


def require_positive(name: str, value: float) -> None:
    """The value is positive and finite."""
    require(0.0 < value < math.inf, name, "positive and finite", value)


def require_count(name: str, value: int, minimum: int = 1) -> None:
    """The value is an integer of at least `minimum`."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require(whole and value >= minimum, name, f"an integer of at least {minimum}", value)


def require_labels(name: str, labels: Tensor, num_data: int, num_classes: int) -> None:
    """One integer label in {0, …, c−1} for every datum."""
    require_shape(name, labels, (num_data,))
    integral = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    require(integral, name, "of an integer dtype", labels.dtype)
    if num_data:
        low, high = int(labels.min()), int(labels.max())
        inside = low >= 0 and high < num_classes
        require(inside, name, f"in 0 … {num_classes - 1}", f"in {low} … {high}")


def require_entry(name: str, key: str, entries: Collection[str]) -> None:
    """The key is one of a dictionary's entries; if it nearly is, the message asks whether that was meant."""
    near = difflib.get_close_matches(str(key), entries, 1)
    meant = f" (did you mean {near[0]}?)" if near else ""
    require(key in entries, name, "one of " + ", ".join(sorted(entries)) + meant, repr(key))
