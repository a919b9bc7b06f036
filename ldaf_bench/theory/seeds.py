"""Seeds derived from named components: no global seed, and no two purposes that share a stream."""

from __future__ import annotations

import hashlib
import json

import torch


def named_seed(*parts: str | int | float) -> int:
    """A 63-bit seed from the parts, the same on every machine; any change of a part changes it."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def named_generator(*parts: str | int | float, device: torch.device | str = "cpu") -> torch.Generator:
    """A torch generator seeded by `named_seed`."""
    return torch.Generator(device).manual_seed(named_seed(*parts))
