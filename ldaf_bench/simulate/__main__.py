r"""Do the certificates hold? `python -m ldaf_bench.simulate [--repeats 2000]`

A world with a known true risk: finitely many inputs, each with its own label probabilities. Every repeat draws fresh
data sets and goes the whole way with the package's own functions — a prior trained on its own data, the pushforward, a
posterior fitted on the certificate set, integration, bound — and compares the certificate with the true Gibbs risk,
which for three classes is a sum of one- and two-dimensional normal probabilities.

Honest chains must fail no more often than ε + δ′. Broken ones, which commit the classic mistakes, must be caught
failing more often than that; a simulation that cannot catch them would prove nothing.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import scipy.stats
from rich import box
from rich.console import Console
from rich.progress import track
from rich.table import Table

from ldaf_bench.simulate.chains import AT_LENGTH, BROKEN_REPEATS, VARIANTS, Outcome, run_chain
from ldaf_bench.simulate.world import BUDGET
from ldaf_bench.theory.integrate.sampling import MC
from ldaf_bench.theory.seeds import named_seed


class Tally(NamedTuple):
    """How often one certificate failed."""

    variant: str
    certificate: str
    repeats: int
    failures: int
    ought_to_hold: bool

    @property
    def allowed(self) -> float:
        """ε, and δ′ as well where an integration may fail."""
        return BUDGET.epsilon + (BUDGET.delta if f" / {MC.name}" in self.certificate else 0.0)

    @property
    def verdict(self) -> str:
        """`holds`, `caught`, or what is wrong; both decisions at the level 0.001."""
        test = scipy.stats.binomtest(self.failures, self.repeats, self.allowed, alternative="greater")
        too_often = test.pvalue < 1e-3
        if self.ought_to_hold:
            return "FAILS TOO OFTEN" if too_often else "holds"
        return "caught" if too_often else "NOT CAUGHT"

    @property
    def as_expected(self) -> bool:
        """Whether honest certificates hold and broken ones are caught."""
        return self.verdict in ("holds", "caught")


def simulate(variant: str, repeats: int, outcomes: Sequence[Outcome] | None = None) -> list[Tally]:
    """Tallies of one variant over independent repeats, in this process unless outcomes are given."""
    if outcomes is None:
        outcomes = [run_chain(variant, named_seed(variant, k)) for k in range(repeats)]
    holds = VARIANTS[variant][1]
    return [Tally(variant, key, len(outcomes), sum(o[key] for o in outcomes), holds(key)) for key in outcomes[0]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all variants over all cores; exit code 0 if everything is as it ought to be, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m ldaf_bench.simulate", description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=2000, help="independent data sets (default: 2000)")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats must be at least 1.")
    console = Console()
    tallies: list[Tally] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for variant in options.variants:
            repeats = options.repeats if variant in AT_LENGTH else min(options.repeats, BROKEN_REPEATS)
            seeds = [named_seed(variant, k) for k in range(repeats)]
            results = pool.map(run_chain, itertools.repeat(variant), seeds, chunksize=10)
            label = f"{variant}: {VARIANTS[variant][0]}"
            outcomes = list(track(results, label, total=repeats, console=console))
            tallies += simulate(variant, repeats, outcomes)
    title = "How often certificates were below the true risk"
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("variant", "certificate", "failed", "of", "rate", "allowed", "verdict"):
        words = heading in ("variant", "certificate", "verdict")
        table.add_column(heading, no_wrap=True, justify="left" if words else "right")
    for tally in tallies:
        style = "" if tally.as_expected else "bold red"
        rates = (f"{tally.failures / tally.repeats:.2%}", f"{tally.allowed:.0%}")
        cells = (tally.variant, tally.certificate, str(tally.failures), str(tally.repeats), *rates, tally.verdict)
        table.add_row(*cells, style=style)
    console.print(table)
    wrong = sum(not tally.as_expected for tally in tallies)
    if wrong:
        print(f"{wrong} of {len(tallies)} certificates are not as they ought to be.", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
