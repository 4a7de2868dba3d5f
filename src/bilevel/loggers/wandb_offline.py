"""Weights & Biases, offline: a folder that `wandb sync` sends to the service when you say so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bilevel.loggers.base import Facts, Logger, require
from bilevel.loggers.evaluation import Evaluation


class WandB(Logger):
    """Writes a run for Weights & Biases into a local folder; it needs the extra `wandb`.

    Nothing is sent: `wandb sync folder/wandb/offline-run-*` does that. Where a run is resumed, each process writes an
    offline run of its own, in the group of the run.

    Args:
        folder: where the folder `wandb` goes.
        project: the name of the project.
        name: of the run; None = the solver and the seed. With several seeds each run has its seed in its name.
    """

    def __init__(self, folder: str | os.PathLike[str] = ".", project: str = "bilevel", name: str | None = None):
        require("WandB", "wandb", "wandb")
        self.folder, self.project, self.name = folder, project, name
        self._run: Any = None

    def __repr__(self) -> str:
        return f"WandB({str(self.folder)!r}, project={self.project!r})"

    def start(self, facts: Facts) -> None:
        """Makes the offline run."""
        import wandb  # pyright: ignore[reportMissingImports]

        Path(self.folder).mkdir(parents=True, exist_ok=True)  # where there is none, wandb writes elsewhere
        config = {"solver": facts.solver, "seed": facts.seed, "steps": facts.steps, "tasks": len(facts.tasks)}
        name = self.name or f"{facts.title}, seed {facts.seed}"
        self._run = wandb.init(
            project=self.project,
            name=name,
            group=None if facts.folder is None else Path(facts.folder).absolute().name,
            dir=os.fspath(self.folder),
            mode="offline",
            config={**config, "bilevel": facts.version, "resumed at step": facts.step},
            reinit="create_new",  # runs of several seeds are there at once
            # The terminal is the caller's, and so are his code and his machine's figures.
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
            ),
        )

    def log(self, row: Evaluation) -> None:
        """A row of the history."""
        self._open().log(row.scalars(), step=row.step)

    def event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """An entry of the summary with the last of its kind; checkpoints are not told."""
        if kind != "checkpoint":
            self._open().summary[kind] = {name: str(value) for name, value in facts.items()}

    def end(self, status: str, message: str) -> None:
        """Ends the run, with how it ended in the summary."""
        run = self._open()
        run.summary.update({"status": status, "message": message})
        run.finish(exit_code=0 if status in ("converged", "finished", "stopped early") else 1)

    def for_run(self, seed: int) -> WandB:
        """A run of its own in the same project."""
        return WandB(self.folder, self.project, f"{self.name}, seed {seed}" if self.name else None)

    def _open(self) -> Any:
        if self._run is None:
            raise RuntimeError(f"{self!r} was not started")
        return self._run
