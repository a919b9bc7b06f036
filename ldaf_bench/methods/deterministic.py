"""The deterministic baseline: a plain network with a linear head, certified on held-out data. Nothing is random."""

from __future__ import annotations

from torch import Tensor

from ldaf_bench.methods.method import Method
from ldaf_bench.models.classifier import Classifier
from ldaf_bench.models.heads import LinearHead
from ldaf_bench.sections import Spec


def digest(spec: Spec, model: Classifier, images: Tensor) -> dict[str, Tensor]:
    """The logits, which are all that there is to know."""
    return {"logits": model(images)}


DETERMINISTIC = Method(name="deterministic", head=LinearHead, digest=digest, logits=lambda digest: digest["logits"])
