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
from typing import Any

import jax

from bilevel._core.array_files import Content
from bilevel._core.files import write_whole
from bilevel._core.types import Json
from bilevel._run import sharded_leaves, state_files
from bilevel._run.checkpoints import Checkpoint, OneFile
from bilevel._run.identity import DifferentRunError, Identity, changes, check_same, digest, environment, identity_of
from bilevel._run.peers import check_shared_folder
from bilevel._run.run import Run
from bilevel._run.run_folder import RunFolder
from bilevel._run.run_state import RunState
from bilevel._run.state_files import Snapshot
from bilevel.results.result import Result

DISK_LATENCY, DISK_SPEED = 0.1, 1e8  # seconds, bytes a second: assumed until a write was timed


class CheckpointWriter:
    """Writes the checkpoints of one run.

    Of several processes, process 0 has the folder. When it says so, the others send their part to it or to Orbax. They
    resume from what it has read.
    """

    write_seconds = 0.0  # to write one state, measured or estimated
    kept_step: int | None = None  # of the newest state in the folder; None = there is none

    def __init__(
        self, run: Run, checkpoint: Checkpoint, folder: RunFolder | None = None, facts: dict[str, Any] | None = None
    ):
        assert run.report is not None  # as it has a checkpoint
        self._run, self._checkpoint, self._folder, self._facts = run, checkpoint, folder, facts or {}
        self._report = run.report
        self._writer = checkpoint.files.writer(run.peers.processes, run.peers.rank)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bilevel-writer")
        self._writing: Future[float] | None = None
        self._last_time, self._last_step, self._warned, self._ended = time.monotonic(), 0, False, False

    def restore(self) -> RunState | None:
        """The newest readable state; None if there is none."""
        run, peers = self._run, self._run.peers
        while True:
            path, content, reached = peers.led(self._newest) or (None, None, None)
            read = peers.told(None if path is None or peers.processes == 1 else path.read_bytes())
            if read is not None and not peers.leads:
                content = state_files.of_bytes(read)
            if content is None:
                return None
            if sharded_leaves.is_in_parts(content):
                reached = sharded_leaves.restored(run, content, self._checkpoint.path)
            else:
                reached = run.spread(reached or state_files.restore(content, state_files.outline(run)))
            if isinstance(reached, RunState):
                break
            peers.led(functools.partial(self._set_aside, path, reached))
        self._last_step, self._ended = reached.step, not reached.running
        self.kept_step = reached.step
        return reached

    def _newest(self) -> tuple[Path, Content, RunState | None] | None:
        """A state in the folder. If it is in parts, every process reads its own later."""
        assert self._folder is not None
        found = self._folder.newest(self._facts["run"])
        if found is None:
            return None
        path, content = found
        try:
            if sharded_leaves.is_in_parts(content):
                sharded_leaves.plan(self._run, content, self._folder.path)
                return path, content, None
            return path, content, state_files.restore(content, state_files.outline(self._run))
        except ValueError as error:
            said = f"solve(resume=True): {str(path)!r} does not fit this run: {error}."
            raise DifferentRunError(said) from error

    def _set_aside(self, path: Path | None, damage: str) -> None:
        assert self._folder is not None
        assert path is not None
        self._folder.set_aside(path, damage)

    def next_due(self) -> int | None:
        """The step at which a state is due; None = states are due by time."""
        return None if self._checkpoint.steps is None else self._last_step + int(self._checkpoint.steps)

    def offer(self, reached: RunState) -> None:
        """Starts to write a state if one is due. The run continues meanwhile."""
        if not self.write_seconds:
            bytes_in_all = sum(leaf.nbytes for leaf in jax.tree.leaves((reached.carry, reached.best, reached.safe)))
            self.write_seconds = DISK_LATENCY + bytes_in_all / DISK_SPEED
        if self._writing is not None and self._writing.done():
            self._finish()
        if self._run.peers.decided(reached.running and self._is_due(reached.step) and self._writing is None):
            self._begin(reached)

    def stop(self, reached: RunState) -> None:
        """Writes the state of a run that will be resumed later, and waits for the write to finish."""
        self._begin(reached, last=True)
        self._finish(last=True)

    def end(self, reached: RunState, result: Result) -> None:
        """Writes the state and the result of a run that has ended, unless it had ended before it was resumed."""
        file = None if self._folder is None else self._folder.result
        if self._run.peers.decided(self._ended and file is not None and file.is_file()):
            return
        self.stop(reached)
        if file is not None:
            with self._trouble("the result", last=True):
                result.save(file)

    def close(self) -> None:
        """Waits for pending writes. With several processes, a run that stops without an end has lost one of them."""
        if self._writer is not None:
            self._writer.abandon()
        self._pool.shutdown()

    def _is_due(self, step: int) -> bool:
        by_time = self._checkpoint.seconds
        due = self.next_due()
        late = by_time is not None and time.monotonic() - self._last_time >= by_time
        went_back = step < self._last_step
        return went_back or (step > self._last_step and (late or (due is not None and step >= due)))

    def _begin(self, reached: RunState, last: bool = False) -> None:
        """Copies the state, and starts to write it."""
        self._finish()
        self._last_time, self._last_step = time.monotonic(), reached.step
        with self._trouble("its state", last):
            self._writing = self._pool.submit(self._write, self._copied(reached))

    def _copied(self, reached: RunState) -> Callable[[], Snapshot]:
        """A function for the thread. It raises an OSError, or returns what process 0 then writes."""
        if self._writer is not None:
            return sharded_leaves.begin(self._run, reached, self._writer, self._checkpoint.path)
        snapshot = state_files.take(self._run, reached)
        return lambda: snapshot

    def _write(self, copied: Callable[[], Snapshot]) -> float:
        began = time.monotonic()
        snapshot = copied()
        if self._folder is not None:
            write_whole(self._folder.state(snapshot.step), snapshot.encode(**self._facts))
            self._folder.prune(snapshot.step, int(self._checkpoint.keep), snapshot.document.get("arrays"))
        return time.monotonic() - began

    def _finish(self, last: bool = False) -> None:
        writing, self._writing = self._writing, None
        if writing is None:
            return
        with self._trouble("its state", last):
            self.write_seconds = writing.result()
            self.kept_step = self._last_step
            self._report.event("checkpoint", {"step": self._last_step, "seconds": self.write_seconds})

    @contextlib.contextmanager
    def _trouble(self, what: str, last: bool) -> Iterator[None]:
        """Reports a disk error, with a warning the first time. The run continues."""
        try:
            yield
        except OSError as error:
            said = f"solve(checkpoint={str(self._checkpoint.folder)!r}): {what} could not be written ({error})."
            self._report.event("problem", {"message": said})
            if self._folder is not None and (not self._warned or last):
                self._warned = True
                then = "The result still has it." if last else "The run continues, and the write is tried again."
                warnings.warn(f"{said} {then}", RuntimeWarning, stacklevel=2)


class StatesOnly(CheckpointWriter):
    """For a run whose result is stored elsewhere: its end writes nothing here."""

    def end(self, reached: RunState, result: Result) -> None:
        self._finish()


@contextlib.contextmanager
def open_checkpoints(
    runs: Sequence[Run], kind: type[CheckpointWriter] = CheckpointWriter
) -> Iterator[Sequence[CheckpointWriter]]:
    """A scope with one writer for each of several runs that differ in their seed; each holds the lock of its folder.

    Runs without checkpoints have no writers.
    """
    if runs[0].checkpoint is None:
        yield ()
        return
    with contextlib.ExitStack() as stack:
        writers = runs[0].peers.led(lambda: _opened(stack, runs, kind))
        if writers is None:
            writers = [kind(run, run.checkpoint) for run in runs if run.checkpoint is not None]
        for writer in writers:
            stack.callback(writer.close)
        for run in runs:
            if run.checkpoint is not None and not isinstance(run.checkpoint.files, OneFile):
                check_shared_folder(run.peers, run.checkpoint.path)
        yield writers


def _opened(stack: contextlib.ExitStack, runs: Sequence[Run], kind: type[CheckpointWriter]) -> list[CheckpointWriter]:
    """Writers in process 0. The stack closes their folders."""
    layout = runs[0].layout
    made_with, shared = environment(1 if layout is None else layout.mesh.size), identity_of(runs[0])
    writers, changed, draws_others = [], set[str](), False
    for run in runs:
        assert run.checkpoint is not None
        folder = RunFolder(run.checkpoint.folder)
        stack.callback(folder.close)
        facts, kept = shared | {"seed": int(run.seed)}, folder.description()
        if kept is None:
            shown = {"title": type(run.solver).__name__, "seed": facts["seed"], "steps": facts["steps"]}
            shown["tasks"] = list(map(str, run.problem.names))
            folder.describe(shown | {"identity": facts, "environment": made_with})
        else:
            _check_kept(run, folder, kept, facts)
            before = kept.get("environment", {})
            changed |= {changes(before, made_with)} - {""}
            draws_others |= run.draws and before.get("devices") != made_with["devices"]
        assert run.report is not None
        run.report.keep_in(folder.path)
        writers.append(kind(run, run.checkpoint, folder, {"made with": made_with, "run": digest(facts)}))
    if changed:
        differ = "steps draw other tasks than" if draws_others else "numbers may differ in their last digits from"
        warnings.warn(
            f"solve(resume=True): the run was started with {'; '.join(sorted(changed))}. It resumes, and its {differ} "
            "those of an uninterrupted run.",
            stacklevel=4,
        )
    return writers


def _check_kept(run: Run, folder: RunFolder, kept: dict[str, Json], facts: Identity) -> None:
    if not run.resume:
        raise FileExistsError(
            f"{folder.where}: there is a run already. Pass resume=True to resume it, or another folder."
        )
    identity = kept["identity"] if isinstance(kept.get("identity"), dict) else {}
    check_same(f"solve(resume=True): the folder {str(folder.path)!r}", identity, facts)
