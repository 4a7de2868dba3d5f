"""Checksums of files: Orbax has none of the numbers themselves, and a bit that a disk has flipped is read as it is."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

from bilevel._core.files import open_regular
from bilevel.checkpoints.base import Checksums

WRITER = re.compile(r"process_(\d+)")


def of_files(place: Path, processes: int, rank: int) -> Checksums:
    """Of those that a process has written; of those of nobody in particular where it is process 0."""
    files = [path for path in place.rglob("*") if path.is_file()]
    names = {path.relative_to(place).as_posix(): path for path in files}
    return {name: _checksum(path) for name, path in sorted(names.items()) if _writer(name) % processes == rank}


def check(place: Path, wanted: Checksums, processes: int, rank: int) -> None:
    """A ValueError or an OSError where a file is not what it was. Processes share the files."""
    for name, (size, checksum) in sorted(wanted.items())[rank::processes]:
        parts = PurePosixPath(name).parts
        if not parts or ".." in parts or parts[0] == "/":
            raise ValueError(f"{name!r:.80} is no file of a state")
        if _checksum(place.joinpath(*parts)) != (size, checksum):
            raise ValueError(f"{place.name}/{name} is damaged: its checksum does not match")


def _writer(name: str) -> int:
    found = WRITER.search(name)
    return int(found[1]) if found else 0


def _checksum(path: Path) -> tuple[int, str]:
    with open_regular(path, str(path)) as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        return file.tell(), checksum
