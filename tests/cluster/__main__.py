"""`make test-cluster`: the README's section "On a cluster", on three hosts that this script makes on one machine.

A laptop runs the suite alone, then `ray up` on cluster.yaml with its three lines filled in, submits the same suite,
loses a worker host mid-training and one mid-sweep, fetches the report, compares it with its own, and takes the cluster
down. A neighbour without the token finds all doors closed. Needs root and a few Debian packages; where they are not
there it says so, with exit code 2. `--quick` loses no host; `--rehearse` submits the rehearsal of suites/cifar.yaml.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

NEEDED = {"unshare": "util-linux", "ip": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client",
          "rsync": "rsync", "ps": "procps", "git": "git", "make": "make"}  # fmt: skip
# If this script is killed, the sandbox goes with it.
SANDBOX = [
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--net",
    "--mount",
    "--pid",
    "--uts",
    "--ipc",
    "--fork",
    "--kill-child",
    "--mount-proc",
]


def missing() -> str:
    """Why hosts cannot be made here; empty if they can."""
    lacking = sorted(package for command, package in NEEDED.items() if shutil.which(command) is None)
    if lacking:
        return f"install these Debian packages first: {' '.join(lacking)}"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    bridge = "ip link add switch type bridge && ip link add one type veth peer name other"
    tried = subprocess.run([*SANDBOX, "sh", "-c", bridge], capture_output=True, text=True)
    return f"namespaces cannot be made: {tried.stderr.strip()}" if tried.returncode else ""


def left_over(namespaces: set[str], scratch: Path) -> list[str]:
    """Processes in one of the namespaces, mounts and files that the test has left behind."""
    found = [f"the folder {scratch}"] if scratch.exists() else []
    found += [line for line in Path("/proc/mounts").read_text().splitlines() if str(scratch) in line]
    for process in Path("/proc").glob("[0-9]*"):
        for kind in ("net", "mnt", "pid", "uts", "ipc"):
            try:
                if os.readlink(process / "ns" / kind) in namespaces:
                    found.append(f"process {process.name}: {(process / 'cmdline').read_text()}")
            except OSError:  # ended meanwhile
                continue
    return found


def main() -> int:
    """Outside: make the sandbox, wait for what happens in it, and see that nothing is left of it."""
    if reason := missing():
        print(f"The test on several hosts cannot run: {reason}.", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` is done
    scratch = Path(tempfile.mkdtemp(prefix="ldaf_cluster_", dir="/tmp"))
    try:
        story = [sys.executable, "-m", "tests.cluster.story", str(scratch), *sys.argv[1:]]
        code = subprocess.run([*SANDBOX, *story]).returncode
        seen = scratch / "namespaces"
        namespaces = set(seen.read_text().split()) if seen.exists() else set()
    finally:
        shutil.rmtree(scratch)
    left = left_over(namespaces, scratch)
    print("Nothing is left: no process, namespace, mount or file." if not left else "\n".join(["Left behind:", *left]))
    return code or int(bool(left))


if __name__ == "__main__":
    sys.exit(main())
