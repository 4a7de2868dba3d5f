"""Agreement between the processes of a run: when to stop, where a call ends, what to keep, and that all see its folder.

Process 0 decides and prints, but a signal may reach any process. A process that decides nothing contributes 0, so that
the maximum over all processes is the decision.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import jax
import numpy as np

T = TypeVar("T")
LOST = ("Gloo", "NCCL", "coordination service", "DEADLINE_EXCEEDED", "UNAVAILABLE")  # in messages of JAX


class Peers(NamedTuple):
    """The processes that share a run; there may be only one."""

    processes: int = 1
    rank: int = 0

    @classmethod
    def of(cls, processes: int) -> Peers:
        return cls(processes, jax.process_index()) if processes > 1 else cls()

    @property
    def leads(self) -> bool:
        """Whether this process decides, prints and writes."""
        return self.rank == 0

    def decided(self, number: int) -> int:
        """The number of process 0, in all processes; at least 0."""
        return self.largest(number if self.leads else 0)

    def largest(self, number: int) -> int:
        """The largest number of all processes; at least 0."""
        if self.processes == 1:
            return int(number)
        from jax.experimental import multihost_utils

        return int(np.max(multihost_utils.process_allgather(np.asarray(number, np.int32))))

    def led(self, action: Callable[[], T]) -> T | None:
        """Runs an action in process 0 and returns its value there, None elsewhere. A failure there is one in all."""
        if self.processes == 1:
            return action()
        try:
            made = action() if self.leads else None
        except BaseException:
            self.largest(1)
            raise
        if self.largest(0):
            raise RuntimeError("Process 0 of this run failed; its message says why.")
        return made

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A scope that turns the loss of a process into a clear error."""
        try:
            yield
        except Exception as error:
            if self.processes > 1 and any(word in str(error) for word in LOST):
                raise ConnectionError(
                    "solve: another process of this run is lost, or does not answer. Start all with checkpoint=... "
                    "and resume=True to continue from the last state."
                ) from error
            raise

    def told(self, content: bytes | None) -> bytes | None:
        """The bytes of process 0, or None, in all processes."""
        if self.processes == 1:
            return content
        from jax.experimental import multihost_utils

        if not self.decided(content is not None):
            return None
        size = 0 if content is None else len(content)
        length = self.decided(size >> 20) * 2**20 + self.decided(size & (2**20 - 1))
        own = np.frombuffer(content, np.uint8) if content is not None else np.zeros(length, np.uint8)
        return np.asarray(multihost_utils.broadcast_one_to_all(own)).tobytes()


PATIENCE = 5.0  # seconds: a network file system may show a new file late


def mark(folder: Path) -> Path:
    """A new temporary file in a folder, with a name that later clean-ups remove."""
    path = folder / f".bilevel-{secrets.token_hex(8)}.tmp"
    with open(path, "xb") as file:
        file.write(b"to be seen by all processes")
        os.fsync(file.fileno())
    return path


def check_shared_folder(peers: Peers, folder: Path) -> None:
    """Raises a FileNotFoundError in all processes unless all see a file that process 0 makes."""
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
