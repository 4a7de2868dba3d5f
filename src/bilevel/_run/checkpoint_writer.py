"""Writes the checkpoints of a run: its folder holds the newest states, the result, and a lock.

    run.json                        identity of the run; written once, before the first step
    state-000000012000.safetensors  state of the run after a step; the newest ones
    result.safetensors              the result, once the run has ended
    state-000000012000-5f3a2b1c.orbax   the arrays of such a state, where `Checkpoint(files=Orbax())` keeps them
    lock                            held while a process works on the folder

A state is written in a separate thread, so that a slow disk does not stop the run. A failed write raises one warning
and is tried again. It never ends the run.

Folders are opened before any long work starts. A folder that is not writable, or holds another run, is refused there.
"""

from __future__ import annotations

import contextlib
import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import jax

from bilevel._core.array_files import Content
from bilevel._core.files import write_whole
from bilevel._core.types import Json
from bilevel._run import sharded_leaves, state_files
from bilevel._run.checkpoints import Checkpoint, OneFile
from bilevel._run.identity import DifferentRunError, Identities, Identity, changes, check_same, digest, environment
from bilevel._run.peers import check_shared_folder
from bilevel._run.run import Run
from bilevel._run.run_folder import RunFolder
from bilevel._run.run_state import RunState
from bilevel._run.sharded_leaves import States
from bilevel._run.state_files import Snapshot
from bilevel.results.result import Result

DISK_LATENCY, DISK_SPEED = 0.1, 1e8  # seconds, bytes a second: assumed until a write was timed


class NoCheckpoint:
    """Writes nothing: for a run without checkpoints."""

    write_seconds = 0.0
    kept_step: int | None = None  # of the newest state in the folder; None = there is none

    def restore(self) -> RunState | None:
        """No state to resume from."""
        return None

    def next_due(self) -> int | None:
        """No state is ever due."""
        return None

    def offer(self, reached: RunState) -> None:
        """Does nothing."""

    def stop(self, reached: RunState) -> None:
        """Does nothing."""

    def end(self, reached: RunState, result: Result) -> None:
        """Does nothing."""


class Found(NamedTuple):
    """A state in the folder."""

    path: Path
    content: Content
    reached: RunState | None  # None = it is in parts, of which every process reads its own


class CheckpointWriter(NoCheckpoint):
    """Writes the checkpoints of one run to its folder."""

    def __init__(self, run: Run, checkpoint: Checkpoint, folder: RunFolder, made_with: Identity, run_digest: str):
        self._run, self._checkpoint, self._folder = run, checkpoint, folder
        self._facts = {"made with": made_with, "run": run_digest}
        self._states = States(run)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bilevel-writer")
        self._writing: Future[float] | None = None
        self._last_time, self._last_step, self._warned, self._ended = time.monotonic(), 0, False, False
        self.write_seconds, self._timed = 0.0, False  # time to write one state, measured or estimated
        self.tell: Callable[[str, dict[str, Json]], None] = lambda event, facts: None  # "checkpoint" and "problem"

    def restore(self) -> RunState | None:
        """The newest readable state; None if there is none."""
        peers = self._run.peers
        while True:
            found = peers.led(self._newest)
            peers.told(None if found is None or peers.processes == 1 else found.path.read_bytes())
            if found is None:
                return None
            reached = _on_devices(self._run, found.content, found.reached)
            if isinstance(reached, RunState):
                break
            peers.led(functools.partial(self._folder.set_aside, found.path, reached))
        self._last_step, self._ended = reached.step, not reached.running
        self.kept_step = reached.step
        return reached

    def _newest(self) -> Found | None:
        found = self._folder.newest(self._facts["run"])
        if found is None:
            return None
        path, content = found
        try:
            if sharded_leaves.is_in_parts(content):
                sharded_leaves.plan(self._run, content, self._folder.path)
                return Found(path, content, None)
            return Found(path, content, state_files.restore(content, state_files.outline(self._run)))
        except ValueError as error:
            said = f"solve(resume=True): {str(path)!r} does not fit this run: {error}."
            raise DifferentRunError(said) from error

    def next_due(self) -> int | None:
        """The step at which a state is due; None = states are due by time."""
        return None if self._checkpoint.steps is None else self._last_step + int(self._checkpoint.steps)

    def offer(self, reached: RunState) -> None:
        """Starts to write a state if one is due. The run continues meanwhile."""
        if not self._timed:
            bytes_in_all = sum(leaf.nbytes for leaf in jax.tree.leaves((reached.carry, reached.best, reached.safe)))
            self.write_seconds = DISK_LATENCY + bytes_in_all / DISK_SPEED
        if self._writing is not None and self._writing.done():
            self._finish()
        if self._run.peers.decided(reached.running and self._is_due(reached.step) and self._writing is None):
            self._begin(reached)

    def stop(self, reached: RunState) -> None:
        """Writes the state of a run that will be resumed later, and waits for the write to finish."""
        self._finish()
        self._begin(reached, last=True)
        self._finish(last=True)

    def end(self, reached: RunState, result: Result) -> None:
        """Writes the state and the result of a run that has ended, unless it had ended before it was resumed."""
        if self._run.peers.decided(self._ended and self._folder.result.is_file()):
            return
        self.stop(reached)
        with self._trouble("the result", last=True):
            result.save(self._folder.result)

    def close(self) -> None:
        """Waits for pending writes. With several processes, a run that stops without an end has lost one of them."""
        self._states.abandon()
        self._pool.shutdown()

    def _is_due(self, step: int) -> bool:
        by_time = self._checkpoint.seconds
        due = self.next_due()
        late = by_time is not None and time.monotonic() - self._last_time >= by_time
        went_back = step < self._last_step
        return went_back or (step > self._last_step and (late or (due is not None and step >= due)))

    def _begin(self, reached: RunState, last: bool = False) -> None:
        self._last_time, self._last_step = time.monotonic(), reached.step
        with self._trouble("its state", last):
            taken = self._states.begin(reached)
            self._writing = self._pool.submit(self._write, taken)

    def _write(self, taken: Callable[[], Snapshot]) -> float:
        began = time.monotonic()
        snapshot = taken()
        write_whole(self._folder.state(snapshot.step), snapshot.encode(**self._facts))
        self._folder.prune(snapshot.step, int(self._checkpoint.keep), snapshot.document.get("arrays"))
        return time.monotonic() - began

    def _finish(self, last: bool = False) -> None:
        """Waits for the pending write, and reports its outcome."""
        writing, self._writing = self._writing, None
        if writing is None:
            return
        with self._trouble("its state", last):
            self.write_seconds, self._timed = writing.result(), True
            self.kept_step = self._last_step
            self.tell("checkpoint", {"step": self._last_step, "seconds": self.write_seconds})

    @contextlib.contextmanager
    def _trouble(self, what: str, last: bool) -> Iterator[None]:
        """Reports a disk error, with a warning the first time. The run continues."""
        try:
            yield
        except OSError as error:
            said = f"solve(checkpoint={str(self._checkpoint.folder)!r}): {what} could not be written ({error})."
            self.tell("problem", {"message": said})
            if not self._warned or last:
                self._warned = True
                then = "The result still has it." if last else "The run continues, and the write is tried again."
                warnings.warn(f"{said} {then}", RuntimeWarning, stacklevel=2)


def _on_devices(run: Run, content: Content, reached: RunState | None = None) -> RunState | str:
    """The state on the devices of the run, or a description of what is damaged. All processes call this."""
    if sharded_leaves.is_in_parts(content):
        assert run.checkpoint is not None
        return sharded_leaves.restored(run, content, run.checkpoint.path)
    reached = state_files.restore(content, state_files.outline(run)) if reached is None else reached
    return run.spread(reached)


class CheckpointFollower(NoCheckpoint):
    """For a process that writes no file: it sends its part to process 0 or to Orbax, and resumes from what was read."""

    def __init__(self, run: Run):
        self._run, self._states = run, States(run)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bilevel-writer")
        self._writing: Future[Snapshot] | None = None

    def restore(self) -> RunState | None:
        """The state that process 0 has read."""
        peers = self._run.peers
        while True:
            peers.led(lambda: None)
            content = peers.told(None)
            if content is None:
                return None
            reached = _on_devices(self._run, state_files.of_bytes(content))
            if isinstance(reached, RunState):
                return reached
            peers.led(lambda: None)  # it is set aside

    def offer(self, reached: RunState) -> None:
        """Starts to write when process 0 says so."""
        if self._run.peers.decided(0):
            self._begin(reached)

    def stop(self, reached: RunState) -> None:
        """Sends the whole state, and waits until it is written."""
        self._begin(reached)
        self._finish()

    def _begin(self, reached: RunState) -> None:
        self._finish()
        with contextlib.suppress(OSError):  # of which process 0 tells
            self._writing = self._pool.submit(self._states.begin(reached))

    def _finish(self) -> None:
        writing, self._writing = self._writing, None
        with contextlib.suppress(OSError):
            if writing is not None:
                writing.result()

    def close(self) -> None:
        """Waits for pending writes."""
        self._states.abandon()
        self._pool.shutdown()

    def end(self, reached: RunState, result: Result) -> None:
        """Sends the last state, unless the run had ended before."""
        if not self._run.peers.decided(0):
            self.stop(reached)


class StatesOnly(CheckpointWriter):
    """For a run whose result is stored elsewhere: its end writes nothing here."""

    def end(self, reached: RunState, result: Result) -> None:
        """Waits for pending writes."""
        self._finish()


@contextlib.contextmanager
def open_checkpoints(
    runs: Sequence[Run], kind: type[CheckpointWriter] = CheckpointWriter
) -> Iterator[list[NoCheckpoint]]:
    """A scope with one writer for each run, each of which holds the lock of its folder."""
    if all(run.checkpoint is None for run in runs):
        yield [NoCheckpoint() for _ in runs]
        return
    with contextlib.ExitStack() as stack:
        writers = runs[0].peers.led(lambda: _opened(stack, runs, kind)) or [_following(stack, run) for run in runs]
        for run in runs:
            if run.checkpoint is not None and not isinstance(run.checkpoint.files, OneFile):
                check_shared_folder(run.peers, run.checkpoint.path)
        yield writers


def _following(stack: contextlib.ExitStack, run: Run) -> NoCheckpoint:
    if run.checkpoint is None:
        return NoCheckpoint()
    writer = CheckpointFollower(run)
    stack.callback(writer.close)
    return writer


def _opened(stack: contextlib.ExitStack, runs: Sequence[Run], kind: type[CheckpointWriter]) -> list[NoCheckpoint]:
    layout = runs[0].layout
    opener = _Opener(stack, kind, 1 if layout is None else layout.mesh.size)
    writers = [opener.open(run) for run in runs]
    opener.warn_of_changes()
    return writers


class _Opener:
    """Opens the folders of several runs. A stack closes them. Data that the runs share are hashed once."""

    def __init__(self, stack: contextlib.ExitStack, kind: type[CheckpointWriter], devices: int):
        self._stack, self._kind = stack, kind
        self._identities, self._environment, self._changes = Identities(), environment(devices), set[str]()
        self._draws_others = False  # tasks, than on the devices that a run was begun on

    def open(self, run: Run) -> NoCheckpoint:
        if run.checkpoint is None:
            return NoCheckpoint()
        folder = RunFolder(run.checkpoint.folder)
        self._stack.callback(folder.close)
        facts, kept = self._identities.of(run), folder.description()
        if kept is None:
            shown = {"title": type(run.solver).__name__, "seed": facts["seed"], "steps": facts["steps"]}
            shown["tasks"] = list(map(str, run.problem.names))
            folder.describe(shown | {"identity": facts, "environment": self._environment})
        else:
            _check_kept(run, folder, kept, facts)
            before = kept.get("environment", {})
            self._changes |= {changes(before, self._environment)} - {""}
            self._draws_others |= run.draws and before.get("devices") != self._environment["devices"]
        run.report.keep_in(folder.path)
        writer = self._kind(run, run.checkpoint, folder, self._environment, digest(facts))
        writer.tell = run.report.event
        self._stack.callback(writer.close)
        return writer

    def warn_of_changes(self) -> None:
        if self._changes:
            differ = (
                "steps draw other tasks than" if self._draws_others else "numbers may differ in their last digits from"
            )
            warnings.warn(
                f"solve(resume=True): the run was started with {'; '.join(sorted(self._changes))}. It resumes, and its "
                f"{differ} those of an uninterrupted run.",
                stacklevel=5,
            )


def _check_kept(run: Run, folder: RunFolder, kept: dict[str, Json], facts: Identity) -> None:
    if not run.resume:
        raise FileExistsError(
            f"{folder.where}: there is a run already. Pass resume=True to resume it, or another folder."
        )
    identity = kept["identity"] if isinstance(kept.get("identity"), dict) else {}
    check_same(f"solve(resume=True): the folder {str(folder.path)!r}", identity, facts)
