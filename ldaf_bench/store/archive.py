"""Archives: files in one tar file in which no byte can change unnoticed.

Its last member lists the checksums of all others, and the tar file has a single possible form: packing its members
gives the same bytes. Weights are members of their own with xz, which saves a sixth of them.
"""

from __future__ import annotations

import hashlib
import io
import json
import lzma
import re
import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ldaf_bench.artifacts import ArtifactError, file_sha256, fingerprint, whole_file

NAME = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]*/)*[A-Za-z0-9_-][A-Za-z0-9._-]*")
"""Relative, without hidden parts."""
LIST = "archive.json"
"""The checksums of all other members."""
WEIGHTS = "weights.safetensors"
"""Files of this name are compressed."""
XZ = ".xz"
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 2, "lp": 2, "pb": 2}]
"""For numbers of four bytes: the place of a byte in its number says more about it than its predecessor."""
MOST_EXPANSION = 16
"""A compressed file may not hold more than this many times its size, so that no archive can fill a disk."""


class _Hashed:
    """A file to write to that keeps only the hash of what was written."""

    def __init__(self) -> None:
        self.sha256 = hashlib.sha256()

    def write(self, content: bytes) -> int:
        self.sha256.update(content)
        return len(content)


def write_archive(path: Path, files: Mapping[str, Path]) -> None:
    """The files under these names: sorted, without times and owners. Whole or not at all."""
    with tempfile.TemporaryDirectory() as scratch, whole_file(path) as temporary, temporary.open("wb") as target:
        _write(target, dict(_member(name, file, Path(scratch)) for name, file in files.items()))


def _member(name: str, file: Path, scratch: Path) -> tuple[str, Path]:
    """What stands in the archive for a file: itself, or its compressed form."""
    if file.name != WEIGHTS:
        return name, file
    compressed = scratch / (hashlib.sha256(name.encode()).hexdigest() + XZ)
    with file.open("rb") as content, lzma.open(compressed, "wb", filters=FILTERS) as target:
        shutil.copyfileobj(content, target)
    return name + XZ, compressed


def _expand(compressed: Path) -> None:
    """A compressed member in its place."""
    most = MOST_EXPANSION * compressed.stat().st_size
    with lzma.open(compressed) as content, compressed.with_suffix("").open("xb") as target:
        while block := content.read(1 << 20):
            if target.tell() + len(block) > most:
                raise ArtifactError(f"The archive's {compressed.name} holds more than {MOST_EXPANSION} times its size.")
            target.write(block)
    compressed.unlink()


def _write(target: object, files: Mapping[str, Path]) -> None:
    sums = {name: file_sha256(file) for name, file in sorted(files.items())}
    listed = json.dumps({"files": sums, "checksum": fingerprint(sums)}, indent=1).encode()
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.USTAR_FORMAT) as archive:  # type: ignore[call-overload]
        for name in sums:
            member = tarfile.TarInfo(name)
            member.size = files[name].stat().st_size
            with files[name].open("rb") as content:
                archive.addfile(member, content)
        last = tarfile.TarInfo(LIST)
        last.size = len(listed)
        archive.addfile(last, io.BytesIO(listed))


def unpack(path: Path, folder: Path) -> None:
    """Write the files of an archive into an empty folder; an `ArtifactError` unless it is as `write_archive` makes it.

    Only plain files with plain names are taken. They are packed again, and must give the same bytes: the list of
    checksums is part of them. Only then is anything decompressed.
    """
    files: dict[str, Path] = {}
    if not path.is_file():
        raise ArtifactError(f"There is no archive {path}.")
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                if not member.isreg() or member.issparse() or not NAME.fullmatch(member.name):
                    raise ArtifactError(f"{path} holds {member.name!r}, which is no plain file.")
                content = archive.extractfile(member)
                assert content is not None
                files[member.name] = target = folder / member.name
                target.parent.mkdir(parents=True, exist_ok=True)
                with content, target.open("xb") as file:
                    shutil.copyfileobj(content, file)
        files.pop(LIST, folder / LIST).unlink()
        again = _Hashed()
        _write(again, files)
        if again.sha256.hexdigest() != file_sha256(path):
            raise ArtifactError(f"{path} was changed: its bytes are not those of an archive of its files.")
        for member_file in files.values():
            if member_file.suffix == XZ:
                _expand(member_file)
    except (tarfile.TarError, lzma.LZMAError, EOFError, ValueError, OSError) as error:
        raise ArtifactError(f"{path} cannot be unpacked ({error}): it is damaged, or no archive.") from error
