"""TensorBoard's event files, by tensorboardX, which needs neither TensorFlow nor PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bilevel.loggers.base import Facts, Logger, plain_names, require
from bilevel.loggers.evaluation import Evaluation

REFUSED = r"[^-\w.]"  # in the name of a task: a tag takes no more, and groups by slashes


class TensorBoard(Logger):
    """Writes a run for `tensorboard --logdir folder`; it needs the extra `tensorboard`.

    Where a run is resumed, TensorBoard is told to drop what was logged after the step that it goes on from.

    Args:
        folder: of the event files. With several seeds each has its own, `seed-0/` in it.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        require("TensorBoard", "tensorboardX", "tensorboard")
        self.folder = folder
        self._writer: Any = None
        self._names: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"TensorBoard({str(self.folder)!r})"

    def start(self, facts: Facts) -> None:
        """Opens the file, with what is run as a text."""
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]

        self._names = plain_names(facts.tasks, REFUSED)
        # The suffix: files are named by the second, and one that is there already would be replaced.
        purged, suffix = (facts.step + 1, f".{facts.step}") if facts.step else (None, "")
        self._writer = SummaryWriter(os.fspath(self.folder), purge_step=purged, filename_suffix=suffix)
        told = {"solver": facts.solver, "seed": facts.seed, "steps": facts.steps, "bilevel": facts.version}
        self._text("run", told, facts.step)

    def log(self, row: Evaluation) -> None:
        """A point of each curve."""
        writer = self._open()
        for name, number in row.scalars(self._names).items():
            writer.add_scalar(name.replace(" ", "_"), number, row.step)
        writer.flush()  # what is not in the file is lost when the process is killed

    def event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """A text; checkpoints are not told, as there are many and they say nothing of the run."""
        if kind != "checkpoint":
            self._text(kind, facts, int(facts.get("step", 0)))

    def end(self, status: str, message: str) -> None:
        """A text with how it ended."""
        self._text("end", {"status": status, "message": message}, 0)
        self._open().close()

    def for_run(self, seed: int) -> TensorBoard:
        """A folder in this one."""
        return TensorBoard(Path(self.folder) / f"seed-{seed}")

    def _open(self) -> Any:
        if self._writer is None:
            raise RuntimeError(f"{self!r} was not started")
        return self._writer

    def _text(self, tag: str, facts: Mapping[str, Any], step: int) -> None:
        self._open().add_text(tag, "  \n".join(f"{name}: {value}" for name, value in facts.items()), step)
