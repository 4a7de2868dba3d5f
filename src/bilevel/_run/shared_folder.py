"""Whether all processes of a run see the folder that process 0 sees."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path

from bilevel._run.peers import Peers

PATIENCE = 5.0  # seconds: a network file system may show a new file late


def mark(folder: Path) -> Path:
    """A new file in a folder, with the name of those that are swept away."""
    path = folder / f".bilevel-{secrets.token_hex(8)}.tmp"
    with open(path, "xb") as file:
        file.write(b"to be seen by all processes")
        os.fsync(file.fileno())
    return path


def check(peers: Peers, folder: Path) -> None:
    """A FileNotFoundError in all processes unless all see a file that process 0 makes."""
    if peers.processes == 1:
        return
    made = peers.led(lambda: mark(folder))
    name = peers.told(None if made is None else made.name.encode())
    assert name is not None
    missing = peers.largest(0 if _appears(folder / name.decode()) else peers.rank)
    if made is not None:
        with contextlib.suppress(OSError):
            made.unlink()
    if missing:
        raise FileNotFoundError(
            f"solve(checkpoint={str(folder)!r}): process {missing} does not see what process 0 writes there. With "
            "files=bl.checkpoints.Orbax() every process writes its own part: it needs a folder on a disk that all of "
            "them share. bl.checkpoints.OneFile(), the default, needs process 0 only."
        )


def _appears(path: Path) -> bool:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
        with contextlib.suppress(OSError):
            os.listdir(path.parent)  # makes some file systems look again
    return True
