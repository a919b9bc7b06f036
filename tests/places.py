"""A small suite on real digits, and a folder to run it in."""

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from ldaf_bench.run import main
from ldaf_bench.verify.__main__ import main as verify

# fmt: off
SMALL = {
    "suite": "small",
    "data": {"dataset": "digits", "certificate": 0.5},
    "networks": {"backbone": "tinynet", "recipe": {"base": "tiny", "epochs": 4}},
    "methods": {
        "ldaf": {
            "flow": "sflow",
            "num_nodes": 4,
            "covariance": ["code", "scaled"],
            "fit_points": 64,
            "objective": ["cross_entropy", "unfitted"],
        },
        "deterministic": {},
    },
    "risks": {"integrator": ["mc", "bonferroni", "qmc", "forward_mc", "one_draw"], "num_points": 16},
    "certificates": {
        "bound": [
            "kl", "kl_exact", "lambda", "quad", "classic", "catoni", "catoni_grid", "split_kl", "test_set", "chernoff",
            "betting",
        ],
        "guess": [0.05, 0.1],
        "epsilon": [0.01, 0.05],
        "delta": 0.01,
        "report": "best",
    },
    "convergence": {"num_points": [8, 32], "repeats": 2, "reference_points": 64},
    "resources": {"train": {"cpus_per_worker": 1, "checkpoint_seconds": 0.3}, "digest": {"cpus_per_worker": 1}},
}
# fmt: on
CHANGING = {
    "finished",
    "commit",
    "peak_bytes",
    "seconds",
    "train_seconds",
    "digest_seconds",
    "fit_seconds",
    "integrate_seconds",
}
"""Columns that tell the time or the machine."""


class Place:
    """A folder to run the small suite in."""

    def __init__(self, folder, suite=SMALL):
        self.folder, self.store, self.results = folder, folder / "store", folder / "results"
        self.file = folder / "suite.yaml"
        folder.mkdir(exist_ok=True)
        self.file.write_text(yaml.safe_dump(suite))
        self.arguments = [str(self.file), "--store", str(self.store), "--results", str(self.results)]

    def run(self):
        return main(self.arguments)

    def verify(self):
        return verify([str(self.results / "small"), "--store", str(self.store)])

    def table(self, name="results"):
        return pq.read_table(self.results / "small" / f"{name}.parquet")

    def files(self):
        """All artifacts with what they hold, locks and leftovers apart."""
        found = {}
        for path in sorted(self.store.rglob("*")):
            if path.is_file() and path.suffix != ".lock":
                found[str(path.relative_to(self.store))] = path.stat().st_mtime_ns
        return found


def steady(table):
    """Without what changes from run to run; training curves' speed is time as well."""
    table = table.drop_columns([name for name in table.column_names if name in CHANGING])
    if "series" in table.column_names:
        table = table.filter(pa.compute.not_equal(table["series"], "images_per_second"))
    return table
