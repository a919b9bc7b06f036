"""Hosts on one machine: each with network, files, processes and name of its own, an ssh server, and a power switch.

Everything lives in namespaces without names, inside the sandbox of `__main__`: whatever happens, the kernel takes all
of it away with the sandbox's first process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from dataclasses import dataclass, field
from pathlib import Path

TOP = Path(__file__).parents[2]
NETWORK = "10.77.0"
"""Exists inside the sandbox only."""
SWITCH = f"{NETWORK}.254"
"""The address of the sandbox itself: a neighbour who is no part of the cluster."""
HOME = Path("/root")
PROJECT = HOME / "ldaf_bench"


def run(*command: str, **options: object) -> subprocess.CompletedProcess[str]:
    """A command that must succeed."""
    done = subprocess.run(command, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with {done.returncode}: {done.stdout}{done.stderr}")
    return done


def plug_in_switch() -> None:
    """A bridge that all hosts hang on, in the sandbox's own network namespace."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "switch", "type", "bridge")
    run("ip", "address", "add", f"{SWITCH}/24", "dev", "switch")
    run("ip", "link", "set", "switch", "up")


def install(project: Path) -> None:
    """What `make install` would leave, without its gigabytes: the packages are those of this environment."""
    own = PROJECT / ".venv"
    folder = project / ".venv"
    binaries, packages = folder / "bin", folder / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    binaries.mkdir(parents=True)
    packages.mkdir(parents=True)
    base = Path(sys.executable).resolve()
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    for name in ("python", "python3"):
        (binaries / name).symlink_to(base)
    for script in Path(sys.prefix, "bin").iterdir():
        content = script.read_bytes() if script.is_file() else b""
        first, _, rest = content.partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            (binaries / script.name).write_bytes(f"#!{own}/bin/python\n".encode() + rest)
            (binaries / script.name).chmod(0o755)
    activate = Path(sys.prefix, "bin/activate").read_text()
    (binaries / "activate").write_text(activate.replace(sys.prefix, str(own)))
    (packages / "borrowed.pth").write_text(f"{PROJECT}\n{HOME}/.packages\n")
    (folder / ".installed").touch()


@dataclass
class Host:
    """A machine of its own. Its disk outlives `power_off`."""

    name: str
    number: int
    folder: Path
    """Its disk: home/ and tmp/."""
    cpus: int = 1
    """What it says it has: two workers of one CPU each are then on two hosts."""
    process: subprocess.Popen[bytes] | None = None
    namespaces: set[str] = field(default_factory=set)
    """All that it ever had, to see at the end that none is left."""

    @property
    def address(self) -> str:
        """On the bridge."""
        return f"{NETWORK}.{self.number}"

    @property
    def home(self) -> Path:
        """Its home folder, seen from the sandbox."""
        return self.folder / "home"

    def format(self, authorized_key: str | None) -> None:
        """A fresh disk; with a key, the host gets an ssh server."""
        for name in ("home/.packages", "home/.ssh", "tmp"):
            (self.folder / name).mkdir(parents=True)
        (self.folder / "home/.ssh").chmod(0o700)
        (self.folder / "tmp").chmod(0o1777)
        (self.folder / "cpus").write_text(f"0-{self.cpus - 1}\n")
        # Debian's own line for the host's name, which leads gloo astray unless somebody takes care.
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {self.name}\n")
        install(self.home / PROJECT.name)
        for name in (".bashrc", ".profile"):
            if (skeleton := Path("/etc/skel", name)).exists():
                shutil.copy(skeleton, self.home)
        if authorized_key is not None:
            (self.home / ".ssh/authorized_keys").write_text(authorized_key)
            (self.home / ".ssh/authorized_keys").chmod(0o600)
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.home / ".ssh/host_key"))

    def power_on(self) -> None:
        """Boot, and plug the cable in."""
        packages = sysconfig.get_path("purelib")
        environment = Path(sys.prefix).resolve()
        hidden = [TOP] if environment.is_relative_to(TOP.resolve()) else [TOP, environment]
        script = [
            str(Path(__file__).with_name("boot.sh")), str(self.folder), self.name, self.address, SWITCH, packages,
            sys.base_prefix, *map(str, hidden),
        ]  # fmt: skip
        own = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        with (self.folder / "boot.log").open("ab") as log:
            self.process = subprocess.Popen(["unshare", *own, "bash", *script], stdout=log, stderr=log)
        end = f"port{self.number}"
        self._until(lambda: self._inner() is not None, "starts")
        run("ip", "link", "add", end, "type", "veth", "peer", "name", "eth0", "netns", str(self._inner()))
        run("ip", "link", "set", end, "master", "switch", "up")
        self._until(lambda: self.enter("test -e /run/booted", check=False).returncode == 0, "boots")
        for kind in ("net", "mnt", "pid", "uts", "ipc"):
            self.namespaces.add(os.readlink(f"/proc/{self._inner()}/ns/{kind}"))

    def _until(self, happens: object, what: str) -> None:
        for _ in range(200):
            if self.process is None or self.process.poll() is not None:
                break
            if happens():  # type: ignore[operator]
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} never {what}: {(self.folder / 'boot.log').read_text()}")

    def _inner(self) -> int | None:
        """Its first process, as the sandbox counts; None if there is none."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else None

    def power_off(self) -> None:
        """At once and without a word to anybody: all its processes and its cable are gone."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None
            subprocess.run(["ip", "link", "del", f"port{self.number}"], capture_output=True)

    def command(self, line: str) -> list[str]:
        """A line of a login shell on this host, as its owner would type it, in the project's folder."""
        inner = self._inner()
        clean = ["env", "-i", f"HOME={HOME}", "USER=root", "LANG=C.UTF-8", f"PATH={os.environ['PATH']}"]
        return ["nsenter", f"--target={inner}", "--all", *clean, "bash", "-c", f"cd {PROJECT} && {line}"]

    def enter(self, line: str, check: bool = True, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """Run the line here and wait for it."""
        done = subprocess.run(self.command(line), capture_output=True, text=True, timeout=timeout)
        if check and done.returncode:
            raise RuntimeError(f"{self.name}: {line} ended with {done.returncode}.\n{done.stdout}\n{done.stderr}")
        return done

    def processes(self) -> dict[int, str]:
        """Command lines of its processes but its first, with its sleep, and its ssh server; seen from the sandbox."""
        inner = self._inner()
        if inner is None:
            return {}
        own, found = os.readlink(f"/proc/{inner}/ns/pid"), {}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # ended meanwhile
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if os.readlink(process / "ns/pid") == own and line and not line.startswith(("sleep 1000", "sshd")):
                    found[int(process.name)] = line
        return {pid: line for pid, line in found.items() if pid != inner}

    def busy(self, seconds: float = 1) -> dict[str, float]:
        """Cores that each of its processes used in the next seconds."""

        def used() -> dict[int, float]:
            times: dict[int, float] = {}
            for pid in names:
                with contextlib.suppress(OSError):
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    times[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            return times

        names = self.processes()
        before = used()
        time.sleep(seconds)
        return {names[pid]: (time_now - before[pid]) / seconds for pid, time_now in used().items() if pid in before}

    def traffic(self, seconds: float = 1) -> float:
        """Bytes per second that it sends in the next seconds."""

        def sent() -> int:
            shown = run("ip", "-json", "-stats", "link", "show", f"port{self.number}").stdout
            return json.loads(shown)[0]["stats64"]["rx"]["bytes"]  # what the switch receives

        before = sent()
        time.sleep(seconds)
        return (sent() - before) / seconds
