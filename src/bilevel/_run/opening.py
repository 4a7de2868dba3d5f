"""Opens the folders of runs before anything long begins: what cannot be kept, or is another run, is refused at once."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from bilevel._run import shared_folder
from bilevel._run.identity import Facts, Identities, changes, check_same, digest, environment
from bilevel._run.keeping import Following, Keeper, Unkept
from bilevel._run.run import Run
from bilevel._run.run_folder import RunFolder
from bilevel.checkpoints import OneFile


@contextlib.contextmanager
def opened(runs: Sequence[Run], kind: type[Keeper] = Keeper) -> Iterator[list[Unkept]]:
    """A keeper for each run, each with the lock of its folder."""
    if all(run.checkpoint is None for run in runs):
        yield [Unkept() for _ in runs]
        return
    with contextlib.ExitStack() as stack:
        keepers = runs[0].peers.led(lambda: _opened(stack, runs, kind)) or [_following(stack, run) for run in runs]
        for run in runs:
            if run.checkpoint is not None and not isinstance(run.checkpoint.files, OneFile):
                shared_folder.check(run.peers, run.checkpoint.path)
        yield keepers


def _following(stack: contextlib.ExitStack, run: Run) -> Unkept:
    if run.checkpoint is None:
        return Unkept()
    keeper = Following(run)
    stack.callback(keeper.close)
    return keeper


def _opened(stack: contextlib.ExitStack, runs: Sequence[Run], kind: type[Keeper]) -> list[Unkept]:
    layout = runs[0].layout
    opener = _Opener(stack, kind, 1 if layout is None else layout.mesh.size)
    keepers = [opener.open(run) for run in runs]
    opener.warn_of_changes()
    return keepers


class _Opener:
    """Opens folders, which a stack closes again; what runs have in common is looked at once."""

    def __init__(self, stack: contextlib.ExitStack, kind: type[Keeper], devices: int):
        self._stack, self._kind = stack, kind
        self._identities, self._environment, self._changes = Identities(), environment(devices), set[str]()
        self._draws_others = False  # tasks, than on the devices that a run was begun on

    def open(self, run: Run) -> Unkept:
        if run.checkpoint is None:
            return Unkept()
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
        keeper = self._kind(run, run.checkpoint, folder, self._environment, digest(facts))
        keeper.tell = run.report.event
        self._stack.callback(keeper.close)
        return keeper

    def warn_of_changes(self) -> None:
        if self._changes:
            differ = (
                "steps draw other tasks than" if self._draws_others else "numbers may differ in their last digits from"
            )
            warnings.warn(
                f"solve(resume=True): the run was begun with {'; '.join(sorted(self._changes))}. It goes on, and its "
                f"{differ} those of a run that was never stopped.",
                stacklevel=5,
            )


def _check_kept(run: Run, folder: RunFolder, kept: dict[str, Any], facts: Facts) -> None:
    if not run.resume:
        raise FileExistsError(
            f"{folder.where}: there is a run already. Pass resume=True to go on with it, or another folder."
        )
    identity = kept["identity"] if isinstance(kept.get("identity"), dict) else {}
    check_same(f"solve(resume=True): the folder {str(folder.path)!r}", identity, facts)
