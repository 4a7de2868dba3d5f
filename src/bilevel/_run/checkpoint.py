"""`Checkpoint`: where a run is kept as it goes, and how often it is written."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from bilevel._core import values
from bilevel.checkpoints import Files, OneFile

_ONE_FILE = OneFile()
FolderPath = str | os.PathLike[str]


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Keeps a run in a folder, so that `solve(..., resume=True)` goes on with it, whatever has ended its process.

    How often it is written changes nothing in the run: calls of the compiled loop are cut differently, and no more.

    Args:
        folder: of one run; it is made where there is none. With `seeds` each has a folder in it: `seed-0`, ...
        seconds: between two states that are written; None = not by time.
        steps: the same in steps; None = not by steps. Where both are given, whichever comes first.
        keep: how many states stay, the newest ones; more than one, because a disk may damage a file.
        files: how a state is kept, from `bl.checkpoints`: `OneFile()`, which process 0 writes, or `Orbax()`, where each
            of several processes writes its own part, into a folder that all of them see.

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
        """What `solve(checkpoint=...)` was given, checked: a folder stands for a checkpoint with the defaults."""
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
        """The folder."""
        return Path(self.folder)

    def for_seed(self, seed: int) -> Checkpoint:
        """The same for one of several seeds, in a folder of its own."""
        return dataclasses.replace(self, folder=self.path / f"seed-{int(seed)}")
