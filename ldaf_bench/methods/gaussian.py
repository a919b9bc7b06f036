"""What methods with Gaussian coordinates share: the axes of prior and fit, and how both are made."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import model_validator
from torch import Tensor
from torch.quasirandom import SobolEngine

from ldaf_bench.columns import Column
from ldaf_bench.methods.method import UNFITTED, FitSpec, Fitted, Watch
from ldaf_bench.sections import Count, EntryOf, Fraction, Positive, Shown, Spec
from ldaf_bench.theory.covariances import COVARIANCES, FINDS_ITS_SCALE, PriorData, initial_covariance
from ldaf_bench.theory.gaussian import Gaussian
from ldaf_bench.theory.posterior import OPTIMIZERS, Alternation, FitSettings, fit
from ldaf_bench.theory.pushforward import Affine


class GaussianPrior(Spec):
    """Where the covariance starts."""

    covariance: Annotated[str, EntryOf("covariance", COVARIANCES)] = "code"
    """Initialization of the covariance."""
    scale: Positive = 0.1
    """σ, the size of the covariance in its `unit`; `scaled` finds its own from `rise`."""
    unit: Literal["own", "logits"] = "own"
    """What `scale` is measured in. `own`: the random coordinates themselves; `logits`: the root mean square deviation
    of the logits on prior data, which means the same for every network and covariance."""
    rise: Positive = PriorData._field_defaults["rise"]
    """For `scaled`: by how much the Gibbs risk on prior data may exceed the mean classifier's error."""

    def unused(self) -> frozenset[str]:
        return frozenset({"scale", "unit"} if self.covariance in FINDS_ITS_SCALE else {"rise"})

    @property
    def needs_data(self) -> bool:
        """Whether the prior is made from some data of the prior part."""
        return self.covariance in FINDS_ITS_SCALE or self._in_logits

    @property
    def _in_logits(self) -> bool:
        return self.unit == "logits" and "unit" not in self.unused()

    def make(self, size: int, cache: Affine | None, labels: Tensor | None, seed: int) -> Gaussian:
        """The prior in so many coordinates, by the seed and by prior data alone."""
        some = None if cache is None or labels is None else PriorData(cache, labels, self.rise)
        scale = 1.0 if "scale" in self.unused() else self.scale
        in_logits = self._in_logits
        return initial_covariance(self.covariance, size, scale=scale, seed=seed, data=some, in_logits=in_logits)


class GaussianFit(FitSpec):
    """How the Gaussian is fitted; the defaults are those of `FitSettings`."""

    objective: Literal["cross_entropy", "zero_one", "unfitted"] = "cross_entropy"
    """What the fit minimizes: the λ-bound with the cross-entropy, or with the 0-1 Gibbs risk itself; `unfitted`: the
    posterior is the prior itself."""
    fit_points: Annotated[Count, Shown("points in training", "largest")] = FitSettings.num_points
    """Sobol points per datum of the cross-entropy in training, a power of 2."""
    zero_one_points: Count = 16
    """Sobol points per datum of the 0-1 risk in training, a power of 2."""
    optimizer: Annotated[str, EntryOf("optimizer", OPTIMIZERS)] = FitSettings.optimizer
    """How the Gaussian is moved."""
    learning_rate: Annotated[Positive | None, Shown(null_means="the optimizer's own")] = FitSettings.learning_rate
    """Learning rate of the fit; null: the optimizer's own."""
    fit_epochs: Count = FitSettings.epochs
    """Passes over the certificate part in one alternation."""
    max_alternations: Count = FitSettings.max_alternations
    """Alternations between Gaussian and λ at most."""
    fit_batch: Count = FitSettings.batch_size
    """Data per step of the fit."""
    fit_epsilon: Fraction = FitSettings.epsilon
    """ε of the bound that the fit minimizes. Any value is valid; certificates have their own."""

    @model_validator(mode="after")
    def _points_are_powers(self) -> GaussianFit:
        for name in ("fit_points", "zero_one_points"):
            count = getattr(self, name)
            if count & (count - 1) or count > 2**SobolEngine.MAXBIT:
                raise ValueError(f"{name} must be a power of 2, at most 2^30 (Sobol points); got {count}")
        return self

    def unused(self) -> frozenset[str]:
        idle = "fit_points" if self.objective == "zero_one" else "zero_one_points"
        return super().unused() | {idle}

    def run(self, cache: Affine, labels: Tensor, prior: Gaussian, seed: int, watch: Watch, **changes: Any) -> Fitted:
        """The posterior that minimizes the λ-bound on the certificate part; `changes` are further settings."""
        settings = FitSettings(
            objective=self.objective,
            epsilon=self.fit_epsilon,
            num_points=self.zero_one_points if self.objective == "zero_one" else self.fit_points,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            epochs=self.fit_epochs,
            max_alternations=self.max_alternations,
            batch_size=self.fit_batch,
            seed=seed,
            **changes,
        )
        found = fit(cache, labels, prior, settings, lambda step: watch(step.bound))
        outcome = {"lam": found.lam, "alternations": len(found.history) - 1, "converged": found.converged}
        return Fitted(found.gaussian, outcome, tuple(self._point(step) for step in found.history))

    def _point(self, step: Alternation) -> dict[str, float]:
        """One step of the fit as a point of its curves; the loss by its own name."""
        values = step._asdict()
        return {"x": float(values.pop("number")), self.objective: values.pop("loss"), **values}


OUTCOMES = (
    Column("lam", float, "λ at the end of the fit", "λ"),
    Column("alternations", int, "alternations between Gaussian and λ"),
    Column("converged", bool, "whether the bound had stopped moving"),
)


def sobol_refusal(axes: Any, num_classes: int) -> tuple[str, str]:
    """Which axis needs Sobol points of more dimensions than there are, and what to do."""
    dimension = num_classes - 1
    limit = f"Sobol points have at most {SobolEngine.MAXDIM} dimensions, but {num_classes} classes need {dimension}"
    if dimension > SobolEngine.MAXDIM and set(axes.objective) != {UNFITTED}:
        return "objective", f"{limit}; use the objective {UNFITTED}"
    if dimension > SobolEngine.MAXDIM and FINDS_ITS_SCALE & set(axes.covariance):
        return "covariance", f"{limit}; leave out {', '.join(sorted(FINDS_ITS_SCALE))}"
    return "", ""
