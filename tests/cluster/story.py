"""What happens inside the sandbox of `__main__`, step by step."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.cluster.hosts import PROJECT, SWITCH, TOP, Host, plug_in_switch, run
from tools.tables import same

SUITE, PLUGIN = (Path(__file__).with_name(name) for name in ("suite.yaml", "plugin.py"))
MINE = "PYTHONPATH=. LDAF_BENCH_PLUGINS=mine"
"""The environment of a command that uses the plug-in, a file of the folder that it is started in."""
BLOCK = re.search(
    r"^## On a cluster\n.*?```\n(.*?)```", (TOP / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE
)
ACTIVATE, TOKEN, UP, SUBMIT, FETCH, DOWN = (line.partition("  #")[0].strip() for line in BLOCK[1].splitlines())
"""What the README tells its reader to type."""
BRING = "ray rsync-up cluster.yaml mine.py '~/ldaf_bench/mine.py'"
"""Takes the plug-in to the head, and nowhere else."""
TRAINED = re.compile(r"^Network \d+ of \d+ is trained", re.MULTILINE)
"""What the run says when a network is trained."""
NUM_NETWORKS = 2
GRADIENTS = 100_000
"""Bytes per second of a host whose worker averages its gradients with another's; Ray alone sends far less."""
BEGAN = time.monotonic()


def tell(sentence: str) -> None:
    """A line with the time."""
    print(f"[{time.monotonic() - BEGAN:4.0f} s] {sentence}", flush=True)


def until(happens: Callable[[], object], what: str, seconds: float, every: float = 1) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not happens():
        if time.monotonic() > end:
            raise RuntimeError(f"Waited {seconds:g} s in vain: {what}.")
        time.sleep(every)


class Story:
    """Three hosts, a laptop, and what is done with them."""

    def __init__(self, scratch: Path, suite: str) -> None:
        self.scratch, self.suite = scratch, suite
        self.head, *self.workers = (Host(f"host{i}", i, scratch / f"host{i}") for i in (1, 2, 3))
        self.laptop = Host("laptop", 9, scratch / "laptop", cpus=2)
        self.hosts = [self.head, *self.workers, self.laptop]
        self.log = scratch / "job.log"

    def prepare(self) -> None:
        """Hosts with nothing but an ssh server and the packages; a laptop with a clone and a key."""
        plug_in_switch()
        key = self.scratch / "key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
        clone(self.laptop.home / PROJECT.name)  # first: an environment older than the lock would be installed again
        for host in self.hosts:
            host.format(key.with_suffix(".pub").read_text() if host is not self.laptop else None)
        shutil.move(key, self.laptop.home / ".ssh/id_ed25519")
        for host in self.hosts:
            host.power_on()

    def alone(self) -> subprocess.Popen[bytes]:
        """The same suite on the laptop alone, with as many workers and threads, while the cluster is made."""
        line = f"{ACTIVATE} && {MINE} python -m ldaf_bench.run suites/cluster.yaml --results alone --store alone"
        with (self.scratch / "alone.log").open("wb") as log:
            return subprocess.Popen(self.laptop.command(line), stdout=log, stderr=subprocess.STDOUT)

    def up(self) -> None:
        """`ray up`, and the workers are there."""
        self.user(TOKEN)
        self.user(f"{UP} --yes", timeout=600)
        tell("ray up has ended: the head is there.")

        def nodes() -> int:
            seen = self.user("ray exec cluster.yaml 'ray status'", check=False).stdout
            return int(max(re.findall(r"/(\d+)\.0 CPU", seen), default=0))  # each has one

        until(lambda: nodes() == 3, "three nodes", 600, every=2)

    def user(self, line: str, check: bool = True, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """A line that the user types on the laptop, with .venv active."""
        return self.laptop.enter(f"{ACTIVATE} && {line}", check, timeout)

    @contextlib.contextmanager
    def job(self):
        """The submitted suite, its output in `log`."""
        with self.log.open("wb") as log:
            asked = SUBMIT.replace("suites/digits.yaml", self.suite).replace("-- python", f"-- env {MINE} python")
            line = f"{ACTIVATE} && {asked}"
            process = subprocess.Popen(self.laptop.command(line), stdout=log, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def trains(self) -> bool:
        """Whether gradients go over the network for three seconds."""
        return all(max(host.traffic() for host in self.workers) > GRADIENTS for _ in range(3))

    def sweeps(self) -> bool:
        """Whether all networks are trained, and a worker host computes: it fits a posterior."""
        trained = len(TRAINED.findall(self.log.read_text(errors="replace"))) == NUM_NETWORKS
        return trained and self.busiest()[0] > 0.2

    def busiest(self) -> tuple[float, Host, str]:
        """Cores that the busiest process on a worker host uses, its host, and its name."""
        at_work = [
            (cores, host, name)
            for host in self.workers
            for name, cores in host.busy(0.5).items()
            if "ray::" in name and "IDLE" not in name and "Agent" not in name
        ]
        return max(at_work, key=lambda found: found[0], default=(0.0, self.workers[0], "nothing"))

    def lose(self, job: subprocess.Popen[bytes], happens: Callable[[], bool], what: str) -> Host:
        """Wait until the job is in the middle of it, then switch off the worker host that works most."""
        until(lambda: happens() or job.poll() is not None, what, 900, every=0.2)
        cores, host, process = self.busiest()
        assert job.poll() is None, f"The job ended before {what}."
        host.power_off()
        tell(f"{host.name} is switched off mid-{what}: {process} ran there, with {cores:.2f} cores.")
        return host

    def stranger(self) -> None:
        """All doors of the head are closed to a neighbour without the token."""
        empty = self.scratch / "stranger"
        empty.mkdir()
        environment = {"HOME": str(empty), "PATH": os.environ["PATH"], "PYTHONPATH": str(TOP), "GRPC_VERBOSITY": "NONE"}
        command = [sys.executable, "-m", "tests.cluster.stranger", self.head.address]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        for line in done.stdout.splitlines():
            row = json.loads(line)
            tell(f"A stranger at {SWITCH} tries {row['door']}: {'closed' if row['closed'] else 'OPEN'} ({row['says']})")
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    def down(self) -> None:
        """`ray down`; a while later no process of Ray is left on any host."""
        self.user(f"{DOWN} --yes")
        tell("ray down has ended.")
        running = [host for host in self.hosts if host.process is not None and host is not self.laptop]
        left = {host.name: host.processes() for host in running}
        tell(f"Processes left: { {name: len(found) for name, found in left.items()} }.")

        def gone() -> bool:
            return not any(host.processes() for host in running)

        try:
            until(gone, "hosts without processes", 300, every=3)
        except RuntimeError as error:
            raise RuntimeError(f"{error} {[host.processes() for host in running]}") from error


def clone(project: Path) -> None:
    """What a user has after `git clone`, with files that are changed here, the three lines filled in, and the suite."""
    safe = ["-c", "safe.directory=*"]
    run("git", *safe, "clone", "--quiet", "--no-hardlinks", str(TOP), str(project))
    changed = run("git", *safe, "-C", str(TOP), "diff", "--name-only", "--diff-filter=d", "HEAD").stdout.split()
    changed += run("git", *safe, "-C", str(TOP), "ls-files", "--others", "--exclude-standard").stdout.split()
    for name in changed:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / name, project / name)
    shutil.copy(SUITE, project / "suites/cluster.yaml")
    shutil.copy(PLUGIN, project / "mine.py")
    file = project / "cluster.yaml"
    file.write_text(filled(file.read_text()))


def filled(text: str) -> str:
    """cluster.yaml with its three lines edited, and nothing else."""
    for old, new in (
        ("<head>", "10.77.0.1"),
        ("[<worker 1>, <worker 2>]", "[10.77.0.2, 10.77.0.3]"),
        ("<user>", "root"),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def main() -> int:
    """The whole story; exit code 0 if all of it is true."""
    scratch, *options = sys.argv[1:]
    scratch, quick, rehearse = Path(scratch), "--quick" in options, "--rehearse" in options
    story = Story(scratch, "suites/cifar.yaml --rehearse" if rehearse else "suites/cluster.yaml")
    try:
        story.prepare()
        tell("Three hosts and a laptop are on the network.")
        alone = None if rehearse else story.alone()
        story.up()
        tell("Three nodes are in the cluster.")
        story.user(BRING)
        with story.job() as job:
            if not quick and not rehearse:
                lost = story.lose(job, story.trains, "training")
                story.stranger()
                lost.power_on()
                tell(f"{lost.name} is switched on again.")
                story.lose(job, story.sweeps, "sweep")
            else:
                story.stranger()
            code = job.wait(timeout=5400)
        assert code == 0, story.log.read_text(errors="replace")
        tell("The suite has ended.")
        story.user(FETCH)
        project = story.laptop.home / PROJECT.name
        if alone is None:
            tell(f"The results are there: {', '.join(os.listdir(project / 'results'))}.")
            print(story.log.read_text(errors="replace"))
        else:
            assert alone.wait(timeout=1800) == 0, (scratch / "alone.log").read_text(errors="replace")
            rows = same(project / "alone/cluster", project / "results/cluster")
            assert (project / "results/cluster/report.html").stat().st_size > 0
            tell(f"The report is there; its {rows} rows equal those of the laptop, apart from times and hosts.")
        story.down()
        tell("No process is left on any host.")
        return 0
    except BaseException:
        for log in (story.log, scratch / "alone.log"):
            if log.exists():
                print(f"The end of {log.name}:\n{log.read_text(errors='replace')[-5000:]}")
        raise
    finally:
        (scratch / "namespaces").write_text("\n".join(name for host in story.hosts for name in host.namespaces))
        for host in story.hosts:
            host.power_off()


if __name__ == "__main__":
    sys.exit(main())
