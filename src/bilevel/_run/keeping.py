"""Keeps a run in its folder as it goes: the newest states, the result, and who works on it.

    run.json                        what is run; written once, before the first step
    state-000000012000.safetensors  all that was reached at a step; the newest ones
    result.safetensors              the result, once the run has ended
    lock                            held while a process works on the folder

A state is written in a thread of its own, so that a slow disk does not stop the run. What cannot be written is told
once and tried again; it ends no run.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax

from bilevel._core.files import write_whole
from bilevel._run import state_files
from bilevel._run.checkpoint import Checkpoint
from bilevel._run.identity import DifferentRunError, Facts
from bilevel._run.run import Reached, Run
from bilevel._run.run_folder import RunFolder
from bilevel._run.state_files import Snapshot
from bilevel.results.result import Result

DISK_LATENCY, DISK_SPEED = 0.1, 1e8  # seconds, bytes a second: assumed until a write was timed


class Unkept:
    """Keeps nothing: for a run without a checkpoint."""

    write_seconds = 0.0
    kept_step: int | None = None  # of the newest state in the folder; None = there is none

    def restore(self) -> Reached | None:
        """There is nothing."""
        return None

    def next_due(self) -> int | None:
        """Never."""
        return None

    def offer(self, reached: Reached) -> None:
        """Does nothing."""

    def stop(self, reached: Reached) -> None:
        """Does nothing."""

    def end(self, reached: Reached, result: Result) -> None:
        """Does nothing."""


class Found(NamedTuple):
    """A state in the folder."""

    path: Path
    reached: Reached


class Keeper(Unkept):
    """Keeps one run in its folder."""

    def __init__(self, run: Run, checkpoint: Checkpoint, folder: RunFolder, made_with: Facts, run_digest: str):
        self._run, self._checkpoint, self._folder = run, checkpoint, folder
        self._facts = {"made with": made_with, "run": run_digest}
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bilevel-writer")
        self._writing: Future[float] | None = None
        self._last_time, self._last_step, self._warned, self._ended = time.monotonic(), 0, False, False
        self.write_seconds, self._timed = 0.0, False  # how long a state took to write, or may take
        self.tell: Callable[[str, dict[str, Any]], None] = lambda event, facts: None  # "checkpoint" and "problem"

    def restore(self) -> Reached | None:
        """What the newest state that can be read has reached; None where there is none."""
        peers = self._run.peers
        found = peers.led(self._newest)
        peers.told(None if found is None or peers.processes == 1 else found.path.read_bytes())
        if found is None:
            return None
        reached = found.reached
        self._last_step, self._ended = reached.step, not reached.running
        self.kept_step = reached.step
        return self._run.spread(reached)

    def _newest(self) -> Found | None:
        found = self._folder.newest(self._facts["run"])
        if found is None:
            return None
        path, content = found
        try:
            return Found(path, state_files.restore(content, state_files.outline(self._run)))
        except ValueError as error:
            said = f"solve(resume=True): {str(path)!r} does not fit this run: {error}."
            raise DifferentRunError(said) from error

    def next_due(self) -> int | None:
        """The step at which a state is due; None = that is a matter of time."""
        return None if self._checkpoint.steps is None else self._last_step + int(self._checkpoint.steps)

    def offer(self, reached: Reached) -> None:
        """Writes a state where it is time to, while the run goes on."""
        if not self._timed:
            bytes_in_all = sum(leaf.nbytes for leaf in jax.tree.leaves((reached.carry, reached.best, reached.safe)))
            self.write_seconds = DISK_LATENCY + bytes_in_all / DISK_SPEED
        if self._writing is not None and self._writing.done():
            self._finish()
        if self._run.peers.decided(reached.running and self._is_due(reached.step) and self._writing is None):
            self._begin(reached)

    def stop(self, reached: Reached) -> None:
        """Writes the state of a run that will go on later, and waits until that is done."""
        self._finish()
        self._begin(reached)
        self._finish(last=True)

    def end(self, reached: Reached, result: Result) -> None:
        """Writes the state and the result of a run that has ended; nothing where it had ended before."""
        if self._run.peers.decided(self._ended and self._folder.result.is_file()):
            return
        self.stop(reached)
        with self._trouble("the result", last=True):
            result.save(self._folder.result)

    def close(self) -> None:
        """Waits for what is being written."""
        self._pool.shutdown()

    def _is_due(self, step: int) -> bool:
        by_time = self._checkpoint.seconds
        due = self.next_due()
        late = by_time is not None and time.monotonic() - self._last_time >= by_time
        went_back = step < self._last_step
        return went_back or (step > self._last_step and (late or (due is not None and step >= due)))

    def _begin(self, reached: Reached) -> None:
        snapshot = state_files.take(self._run, reached)
        self._last_time, self._last_step = time.monotonic(), reached.step
        self._writing = self._pool.submit(self._write, snapshot)

    def _write(self, snapshot: Snapshot) -> float:
        began = time.monotonic()
        write_whole(self._folder.state(snapshot.step), snapshot.encode(**self._facts))
        self._folder.prune(snapshot.step, int(self._checkpoint.keep))
        return time.monotonic() - began

    def _finish(self, last: bool = False) -> None:
        """Waits for the write under way, and tells how it went."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        with self._trouble("its state", last):
            self.write_seconds, self._timed = writing.result(), True
            self.kept_step = self._last_step
            self.tell("checkpoint", {"step": self._last_step, "seconds": self.write_seconds})

    @contextlib.contextmanager
    def _trouble(self, what: str, last: bool) -> Iterator[None]:
        """An error of the disk ends no run: it is told, as a warning once."""
        try:
            yield
        except OSError as error:
            said = f"solve(checkpoint={str(self._checkpoint.folder)!r}): {what} could not be written ({error})."
            self.tell("problem", {"message": said})
            if not self._warned or last:
                self._warned = True
                then = "What was reached is in the result." if last else "The run goes on, and it is tried again."
                warnings.warn(f"{said} {then}", RuntimeWarning, stacklevel=2)


class Following(Unkept):
    """Of a process that does not write: it hands its part to process 0, and goes on from what that reads."""

    def __init__(self, run: Run):
        self._run = run

    def restore(self) -> Reached | None:
        """What process 0 has read."""
        self._run.peers.led(lambda: None)
        content = self._run.peers.told(None)
        if content is None:
            return None
        with tempfile.NamedTemporaryFile(prefix="bilevel-", suffix=".safetensors") as file:
            file.write(content)
            file.flush()
            read = state_files.read(file.name)
        return self._run.spread(state_files.restore(read, state_files.outline(self._run)))

    def offer(self, reached: Reached) -> None:
        """Where process 0 says that it is time."""
        if self._run.peers.decided(0):
            self.stop(reached)

    def stop(self, reached: Reached) -> None:
        """Hands over all that was reached."""
        state_files.take(self._run, reached)

    def end(self, reached: Reached, result: Result) -> None:
        """The same, unless the run had ended before."""
        if not self._run.peers.decided(0):
            self.stop(reached)


class Passing(Keeper):
    """Of a run whose result is kept elsewhere: when it ends, nothing more is written here."""

    def end(self, reached: Reached, result: Result) -> None:
        """Waits for what is being written."""
        self._finish()
