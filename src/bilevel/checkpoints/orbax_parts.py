"""States in parts, by Orbax."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from bilevel._core import values
from bilevel._core.module import part
from bilevel.checkpoints import checksums
from bilevel.checkpoints.base import Checksums, Files, Writer
from bilevel.checkpoints.meeting import Meeting

CHUNK = 2**26  # bytes that are read at once, at least: on other devices than it was written from, a part of an array
_ONE_AT_A_TIME = threading.Lock()  # runs of one process in several threads: Orbax counts its writes


@part
class Orbax(Files):
    """Every process writes what its devices hold: for states that are too large to be gathered on one host.

    All processes must see the folder, which is looked at before the run begins. A state is a folder of arrays, which
    Orbax writes and can read, beside the file of process 0 with all that is small. It is written in the background. A
    run goes on with any number of devices and processes, and with states of either kind, whichever `files` says.
    It needs Orbax: `pip install "bilevel[orbax]"`.

    Args:
        seconds: how long the processes wait for each other until a state counts as not written; the run goes on.

    >>> import bilevel as bl
    >>> bl.Checkpoint("run", files=bl.checkpoints.Orbax())
    Checkpoint(folder='run', seconds=30.0, steps=None, keep=3, files=Orbax(seconds=600.0))
    """

    seconds: float = 600.0

    def check(self) -> None:
        """An ImportError without Orbax."""
        values.positive("seconds", self.seconds, of="Orbax")
        imported()

    def writer(self, processes: int, rank: int) -> Writer:
        """Writes by Orbax."""
        return OrbaxWriter(processes, rank, float(self.seconds))


def imported() -> Any:
    """Orbax."""
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError('bl.checkpoints.Orbax() needs Orbax: pip install "bilevel[orbax]".') from error
    return orbax.checkpoint


class OrbaxWriter(Writer):
    """Writes in the background; `processes` is 1 also for one of several that makes a run for itself."""

    def __init__(self, processes: int, rank: int, seconds: float):
        self._processes, self._rank, self._seconds = processes, rank, seconds
        self._meeting = Meeting(processes, rank)

    def begin(self, place: Path, arrays: Mapping[str, jax.Array]) -> Callable[[], Checksums]:
        """Copies the arrays off the devices, and begins to write."""
        ocp, tree = imported(), dict(arrays)
        self._meeting.begin(place.name)
        chunked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK), tree)
        with _ONE_AT_A_TIME:
            checkpointer = self._checkpointer
            checkpointer.save(os.path.abspath(place), args=ocp.args.PyTreeSave(tree, save_args=chunked))
        return functools.partial(self._end, checkpointer, place)

    def abandon(self) -> None:
        """Leaves the meeting of the processes."""
        self._meeting.leave()

    def _end(self, checkpointer: Any, place: Path) -> Checksums:
        try:
            checkpointer.wait_until_finished()
            own = checksums.of_files(place, self._processes, self._rank)
            texts = self._meeting.gather("checksums", json.dumps(own), self._seconds)
        except Exception as error:
            self._meeting.fail(error)
            # What cannot be written is to TensorStore a wrong value.
            raise error if isinstance(error, OSError) else OSError(f"Orbax: {error}") from error
        return {name: tuple(of_file) for text in texts for name, of_file in json.loads(text).items()}

    @functools.cached_property
    def _checkpointer(self) -> Any:
        ocp = imported()
        # One of several processes that makes a run for itself waits for no other.
        alone = {"primary_host": jax.process_index(), "active_processes": {jax.process_index()}}
        several = ocp.options.MultiprocessingOptions(**(alone if self._processes == 1 else {}))
        in_time = ocp.options.AsyncOptions(timeout_secs=max(1, round(self._seconds)), barrier_sync_fn=self._wait)
        # Numbers of a run hardly get smaller by compression, which takes longer than to write them.
        handler = ocp.PyTreeCheckpointHandler(use_zarr3=True, use_compression=False, multiprocessing_options=several)
        return ocp.AsyncCheckpointer(handler, async_options=in_time, multiprocessing_options=several)

    def _wait(self, *, key: str, timeout_ms: int) -> None:
        self._meeting.gather(key, "", timeout_ms / 1000)
