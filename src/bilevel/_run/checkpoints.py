"""Formats of checkpoints: `bl.Checkpoint(folder, files=...)` takes `OneFile` or `Orbax`.

With `OneFile`, the default, process 0 writes a whole state into one file. With `Orbax` every process writes what its
own devices hold, for states that are too large to gather on one host. This module adds two things that Orbax does not
have: checksums, which find bits that a disk has flipped, and reading of single rows.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from bilevel._core import values
from bilevel._core.files import open_regular
from bilevel._core.module import part

__all__ = ["Checkpoint", "Files", "OneFile", "Orbax"]

Checksums = dict[str, tuple[int, str]]  # of files, by their paths in a folder: length in bytes, SHA-256

CHUNK = 2**26  # fewest bytes in one read: on another number of devices, a device reads parts of arrays
ASK = 0.2  # seconds between two queries
WRITER = re.compile(r"process_(\d+)")  # in the name of a file
_ONE_AT_A_TIME = threading.Lock()  # Orbax counts the writes of a process, whose runs may be in several threads


class Files(abc.ABC):
    """A format of checkpoints: how states are stored in the folder of a run."""

    def check(self) -> None:  # noqa: B027  (most need nothing)
        """Raises if a package is missing or an option makes no sense."""

    @abc.abstractmethod
    def writer(self, processes: int, rank: int) -> OrbaxWriter | None:
        """The writer of a run's arrays for this number of processes; None = process 0 writes them into its file."""


@part
class OneFile(Files):
    """Process 0 writes all of a state into one safetensors file.

    The state is gathered in every process first. Only process 0 needs to see the folder.
    """

    def writer(self, processes: int, rank: int) -> None:
        """None: process 0 writes everything into its file."""
        return None


@part
class Orbax(Files):
    """Every process writes what its devices hold, for states that are too large to be gathered on one host.

    All processes must see the folder, which is checked before the run begins. A state is a folder of arrays, which
    Orbax writes and can read, beside the file of process 0 with all that is small. It is written in the background. A
    run resumes on any number of devices and processes, and from states of either kind, whatever `files` is.
    It needs Orbax: `pip install "bilevel[orbax]"`.

    Args:
        seconds: how long the processes wait for each other. A state that takes longer is not kept; the run goes on.

    >>> import bilevel as bl
    >>> bl.Checkpoint("run", files=bl.checkpoints.Orbax())
    Checkpoint(folder='run', seconds=30.0, steps=None, keep=3, files=Orbax(seconds=600.0))
    """

    seconds: float = 600.0

    def check(self) -> None:
        """Raises an ImportError without Orbax."""
        values.positive("seconds", self.seconds, of="Orbax")
        import_orbax()

    def writer(self, processes: int, rank: int) -> OrbaxWriter:
        """A writer that uses Orbax."""
        return OrbaxWriter(processes, rank, float(self.seconds))


_ONE_FILE = OneFile()
FolderPath = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Writes the state of a run to a folder, so that `solve(..., resume=True)` can continue it.

    How often states are written does not change the run. It only changes how many steps a compiled call takes.

    Args:
        folder: of one run; it is made if it does not exist. With `seeds` each has a folder in it: `seed-0`, ...
        seconds: between two states; None = not by time.
        steps: between two states; None = not by steps. If both are given, the earlier counts.
        keep: how many of the newest states stay; more than one, because a disk may damage a file.
        files: the format, from `bl.checkpoints`: `OneFile()`, which process 0 writes, or `Orbax()`, where each of
            several processes writes its own part, into a folder that all of them see.

    >>> Checkpoint("run")
    Checkpoint(folder='run', seconds=30.0, steps=None, keep=3, files=OneFile())
    """

    folder: FolderPath
    seconds: float | None = 30.0
    steps: int | None = None
    keep: int = 3
    files: Files = _ONE_FILE

    @classmethod
    def of(cls, given: object) -> Checkpoint | None:
        """The checkpoint for `solve(checkpoint=...)`, checked; a folder stands for a checkpoint with the defaults."""
        if given is None:
            return None
        checkpoint = cls(given) if isinstance(given, (str, os.PathLike)) else given
        if not isinstance(checkpoint, Checkpoint):
            kind = type(given).__name__
            raise TypeError(f"solve(checkpoint=...) got {kind}: it needs a folder, a bl.Checkpoint, or None.")
        if not isinstance(checkpoint.folder, (str, os.PathLike)) or not os.fspath(checkpoint.folder):
            raise TypeError(f"Checkpoint(folder={checkpoint.folder!r}): it needs the path of a folder.")
        values.number("seconds", checkpoint.seconds, least=0, of="Checkpoint", none="not by time")
        values.whole("steps", checkpoint.steps, of="Checkpoint", none="not by steps")
        values.whole("keep", checkpoint.keep, of="Checkpoint")
        if not isinstance(checkpoint.files, Files):
            raise TypeError(f"Checkpoint(files={checkpoint.files!r}): it needs bl.checkpoints.OneFile() or Orbax().")
        checkpoint.files.check()
        return checkpoint

    @property
    def path(self) -> Path:
        return Path(self.folder)

    def for_seed(self, seed: int) -> Checkpoint:
        """The checkpoint of one of several seeds, in a folder of its own."""
        return dataclasses.replace(self, folder=self.path / f"seed-{int(seed)}")


def import_orbax() -> Any:
    """Imports Orbax, or says how to install it."""
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError('bl.checkpoints.Orbax() needs Orbax: pip install "bilevel[orbax]".') from error
    return orbax.checkpoint


class OrbaxWriter:
    """Writes arrays in the background. Each of several processes writes the parts that its devices hold.

    `processes` is also 1 for one of several processes that makes a run of its own.
    """

    def __init__(self, processes: int, rank: int, seconds: float):
        self._processes, self._rank, self._seconds = processes, rank, seconds
        self._meeting = Meeting(processes, rank)

    def begin(self, place: Path, arrays: Mapping[str, jax.Array]) -> Callable[[], Checksums]:
        """Copies the arrays off the devices and begins to write; all processes call this together.

        Args:
            place: a folder that does not exist. It appears when everything is written.
            arrays: with at least one axis and one number each.

        Returns:
            A function to call once, in another thread. It waits until everything is written, or raises an OSError.
            It returns the checksums of all files in process 0, and nothing in the others.
        """
        ocp, tree = import_orbax(), dict(arrays)
        self._meeting.begin(place.name)
        chunked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK), tree)
        with _ONE_AT_A_TIME:
            checkpointer = self._checkpointer
            checkpointer.save(os.path.abspath(place), args=ocp.args.PyTreeSave(tree, save_args=chunked))
        return functools.partial(self._end, checkpointer, place)

    def abandon(self) -> None:
        """Stops waiting for other processes, because the run has ended in one of them. An unfinished state is lost."""
        self._meeting.leave()

    def _end(self, checkpointer: Any, place: Path) -> Checksums:
        try:
            checkpointer.wait_until_finished()
            own = checksums_of(place, self._processes, self._rank)
            texts = self._meeting.gather("checksums", json.dumps(own), self._seconds)
        except Exception as error:
            self._meeting.fail(error)
            # TensorStore raises a ValueError where it cannot write.
            raise error if isinstance(error, OSError) else OSError(f"Orbax: {error}") from error
        return {name: tuple(of_file) for text in texts for name, of_file in json.loads(text).items()}

    @functools.cached_property
    def _checkpointer(self) -> Any:
        ocp = import_orbax()
        # A process with a run of its own waits for no other.
        alone = {"primary_host": jax.process_index(), "active_processes": {jax.process_index()}}
        several = ocp.options.MultiprocessingOptions(**(alone if self._processes == 1 else {}))
        in_time = ocp.options.AsyncOptions(timeout_secs=max(1, round(self._seconds)), barrier_sync_fn=self._wait)
        # Compression takes longer than writing, and hardly makes these numbers smaller.
        handler = ocp.PyTreeCheckpointHandler(use_zarr3=True, use_compression=False, multiprocessing_options=several)
        return ocp.AsyncCheckpointer(handler, async_options=in_time, multiprocessing_options=several)

    def _wait(self, *, key: str, timeout_ms: int) -> None:
        self._meeting.gather(key, "", timeout_ms / 1000)


def checksums_of(place: Path, processes: int, rank: int) -> Checksums:
    """Checksums of the files that this process wrote; process 0 also takes files of no process."""
    files = [path for path in place.rglob("*") if path.is_file()]
    names = {path.relative_to(place).as_posix(): path for path in files}
    return {name: _checksum(path) for name, path in sorted(names.items()) if _writer(name) % processes == rank}


def check_files(place: Path, wanted: Checksums, processes: int, rank: int) -> None:
    """A ValueError or an OSError if a file has changed. The processes share the work."""
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


class Meeting:
    """Exchange of texts between processes that write together, in the background. All write in the same order.

    A barrier of JAX is a sum over the devices, which the run uses at the same time. A barrier of JAX's coordination
    service cannot be left before its timeout. So this class polls that service for values: a process whose run has
    ended leaves at once, and the other processes learn of a failure.
    """

    def __init__(self, processes: int, rank: int):
        self._processes, self._rank, self._name = processes, rank, ""
        self._left = threading.Event()

    def begin(self, name: str) -> None:
        """Starts the exchange about one write. No process is in another exchange."""
        if self._name and self._rank == 0 and self._processes > 1:
            self._client().key_value_delete(self._name)
        self._name = f"bilevel/{name}"

    def leave(self) -> None:
        self._left.set()

    def gather(self, key: str, text: str, seconds: float) -> list[str]:
        """In process 0, returns the texts of all processes; in the others, returns when process 0 has them."""
        if self._processes == 1:
            return [text]
        own = self._client()
        own.key_value_set(f"{self._name}/{key}/{self._rank}", text)
        end = time.monotonic() + seconds
        if self._rank:
            self._wait(f"{key}/all", end)
            return []
        texts = [self._wait(f"{key}/{rank}", end) for rank in range(self._processes)]
        own.key_value_set(f"{self._name}/{key}/all", "")
        return texts

    def fail(self, error: BaseException) -> None:
        """Tells waiting processes that this one has failed."""
        if self._processes > 1 and not self._left.is_set():
            said = f"process {self._rank}: {error}"
            self._client().key_value_set(f"{self._name}/failed", said, allow_overwrite=True)

    def _wait(self, key: str, end: float) -> str:
        while True:
            found = self._ask(key)
            if found is not None:
                return found
            failed = self._ask("failed", 0.001)
            if failed is not None:
                raise OSError(f"it failed in {failed}")
            if self._left.is_set():
                raise ConnectionError("the run has ended, or another process is lost")
            if time.monotonic() > end:
                raise TimeoutError("another process did not write its part in time")

    def _ask(self, key: str, seconds: float = ASK) -> str | None:
        try:
            return self._client().blocking_key_value_get(f"{self._name}/{key}", max(1, round(1000 * seconds)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise ConnectionError(f"another process is lost ({error})") from error

    def _client(self) -> Any:
        from orbax.checkpoint import multihost

        return multihost.get_jax_distributed_client()


class Saved(NamedTuple):
    """An array in the folder: rows of one leaf, from row `start` on."""

    key: str
    start: int


class RowReader:
    """Reads rows of the arrays that Orbax has written in one folder, each process those of its own devices.

    Orbax restores whole arrays. On another number of devices the tasks of a group are cut at other rows, so that a
    device needs rows from the middle of one array, or of two. TensorStore, which Orbax writes with, can read those.
    """

    def __init__(self, place: Path):
        self._base = {"driver": "file", "path": os.path.join(os.path.abspath(place), "")}
        self._open = functools.lru_cache(self._opened)

    def on_devices(self, saved: Sequence[Saved], start: int, shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
        """Rows from `start` on, as an array on the devices."""

        def part(index: tuple[slice, ...] | None) -> np.ndarray:
            ranges = [slice(*own.indices(size)[:2]) for own, size in zip(index or (), shape, strict=True)]
            first = slice(start + ranges[0].start, start + ranges[0].stop)
            return self.read(saved, (first, *ranges[1:]))

        return jax.make_array_from_callback(shape, sharding, part)

    def read(self, saved: Sequence[Saved], ranges: tuple[slice, ...]) -> np.ndarray:
        wanted, reads = ranges[0], []
        for key, start in saved:
            store = self._open(key)
            low, high = max(wanted.start, start), min(wanted.stop, start + store.shape[0])
            if low < high:
                reads.append(store[(slice(low - start, high - start), *ranges[1:])].read())
        found = [np.asarray(read.result()) for read in reads]
        whole = found[0] if len(found) == 1 else np.concatenate(found)
        if whole.shape != tuple(own.stop - own.start for own in ranges):
            raise ValueError(f"array {saved[0].key!r} has the shape {whole.shape} where it was asked for {ranges}")
        return whole

    def _opened(self, key: str) -> Any:
        import tensorstore

        kept = {"driver": "ocdbt", "base": self._base, "path": f"{key}/"}
        return tensorstore.open({"driver": "auto", "kvstore": kept}, read=True).result()
