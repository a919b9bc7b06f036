"""Seeds derived from named components: no global seed, and no two purposes that share a stream.

On a CPU, torch's generator uses the lower 32 bits of a seed only, so that two names share a stream with probability
2⁻³². No guarantee rests on that not happening among many names: each integration's statement is about its own draws,
and a union bound over several needs no independence between them. Independence is used twice: between a posterior and
the draws that certify it, and among the seeds of one mixture, which are a handful of names.
"""

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
