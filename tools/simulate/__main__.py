r"""Do the certificates hold? `python -m tools.simulate [--repeats 2000]`

Small worlds whose true risk is known. Every repeat draws fresh data and goes the whole way with the package's own plan,
split, fit, integrations and certificates. The true risk comes from other code: dense matrix exponentials and Owen's T
function.

Honest ways must fail no more often than ε + δ′. Each classic mistake must be caught failing more often than that; a
simulation that cannot catch them would prove nothing.
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

from ldaf_bench.theory.seeds import named_seed
from tools.simulate.chains import CHAINS, Claim, run_chain


class Tally(NamedTuple):
    """How often one claim of a chain failed."""

    chain: str
    claim: str
    repeats: int
    failures: int
    allowed: float
    """ε + δ′."""
    honest: bool

    @property
    def verdict(self) -> str:
        """`holds`, `caught`, or what is wrong; both decisions at the level 0.001."""
        test = scipy.stats.binomtest(self.failures, self.repeats, self.allowed, alternative="greater")
        too_often = test.pvalue < 1e-3
        if self.honest:
            return "FAILS TOO OFTEN" if too_often else "holds"
        return "caught" if too_often else "NOT CAUGHT"

    @property
    def as_expected(self) -> bool:
        """Whether honest claims hold and mistakes are caught."""
        return self.verdict in ("holds", "caught")


def tally(name: str, outcomes: Sequence[Sequence[Claim]]) -> list[Tally]:
    """The claims of one chain over independent data sets."""
    chain = CHAINS[name]
    failures = [sum(outcome[k].failed for outcome in outcomes) for k in range(len(outcomes[0]))]
    return [
        Tally(name, claim.name, len(outcomes), failed, chain.scenario.total, chain.honest)
        for claim, failed in zip(outcomes[0], failures, strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all chains over all cores; exit code 0 if everything is as it ought to be, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tools.simulate", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--repeats",
        type=int,
        default=2000,
        help="independent data sets (default: 2000; to catch every mistake it takes 1000)",
    )
    parser.add_argument("--chains", nargs="+", choices=CHAINS, default=list(CHAINS), metavar="NAME", help="only these")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats must be at least 1.")
    console = Console()
    tallies: list[Tally] = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        for name in options.chains:
            repeats = CHAINS[name].repeats(options.repeats)
            seeds = [named_seed(name, k) for k in range(repeats)]
            results = pool.map(run_chain, itertools.repeat(name), seeds, chunksize=10)
            label = f"{name}: {CHAINS[name].about}"
            tallies += tally(name, list(track(results, label, total=repeats, console=console)))
    title = "How often claims were wrong"
    table = Table(title=title, box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in ("chain", "claim", "failed", "allowed", ""):
        number = heading in ("failed", "allowed")
        table.add_column(heading, justify="right" if number else "left", no_wrap=number, overflow="fold")
    for one in tallies:
        failed = f"{one.failures} of {one.repeats}"
        cells = (one.chain, one.claim, failed, f"{one.allowed:.0%}", one.verdict)
        table.add_row(*cells, style="" if one.as_expected else "bold red")
    console.print(table)
    wrong = sum(not one.as_expected for one in tallies)
    if wrong:
        print(f"{wrong} of {len(tallies)} claims are not as they ought to be.", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
