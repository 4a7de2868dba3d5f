"""Loggers for other tools: `TensorBoard`, `MLflow` and `WandB`, each with an extra of the package."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bilevel._core.types import Json
from bilevel._run.loggers.base import Evaluation, Facts, Logger, plain_names, require

# Letters of a task's name that a store does not take. A tag of TensorBoard is grouped by slashes; a metric of MLflow is
# named as a file is, folders and all.
REFUSED_BY_TENSORBOARD = r"[^-\w.]"
REFUSED_BY_MLFLOW = r"[^-\w. ]|^\.+$"

MOST_LETTERS = 5000  # of a tag of MLflow
# Any other status is FAILED to MLflow.
STATUSES = {"converged": "FINISHED", "finished": "FINISHED", "stopped early": "FINISHED", "interrupted": "KILLED"}
FOLDER_TAG = "bilevel.folder"  # holds a hash of the folder, as a filter cannot write every path
_making = threading.Lock()  # a new store makes its tables at the first use, which two threads must not do at once


class _Store(Logger):
    """A logger that writes through an object of a package, which `start` makes."""

    _opened: Any = None

    def _open(self) -> Any:
        if self._opened is None:
            raise RuntimeError(f"{self!r} was not started")
        return self._opened


def _told(facts: Facts) -> dict[str, Json]:
    return {"solver": facts.solver, "seed": facts.seed, "steps": facts.steps, "bilevel": facts.version}


def _name(name: str | None, facts: Facts) -> str:
    return name or f"{facts.title}, seed {facts.seed}"


def _seed_name(name: str | None, seed: int) -> str | None:
    return f"{name}, seed {seed}" if name else None


class TensorBoard(_Store):
    """Writes a run for `tensorboard --logdir folder`; it needs the extra `tensorboard`.

    Event files are written by tensorboardX, which needs neither TensorFlow nor PyTorch. When a run is resumed,
    TensorBoard drops what was logged after the step that it resumes from.

    Args:
        folder: of the event files. With several seeds each has its own folder in it, `seed-0/` and so on.
    """

    def __init__(self, folder: str | os.PathLike[str]):
        require("TensorBoard", "tensorboardX", "tensorboard")
        self.folder = folder
        self._names: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"TensorBoard({str(self.folder)!r})"

    def start(self, facts: Facts) -> None:
        """Opens the file and writes a text about the run."""
        from tensorboardX import SummaryWriter  # pyright: ignore[reportMissingImports]

        self._names = plain_names(facts.tasks, REFUSED_BY_TENSORBOARD)
        # Files are named by the second: without the suffix one of the same second would be replaced.
        purged, suffix = (facts.step + 1, f".{facts.step}") if facts.step else (None, "")
        self._opened = SummaryWriter(os.fspath(self.folder), purge_step=purged, filename_suffix=suffix)
        self._text("run", _told(facts), facts.step)

    def log(self, row: Evaluation) -> None:
        """Writes a point of each curve."""
        writer = self._open()
        for name, number in row.scalars(self._names).items():
            writer.add_scalar(name.replace(" ", "_"), number, row.step)
        writer.flush()  # otherwise it is lost if the process is killed

    def event(self, kind: str, facts: Mapping[str, Json]) -> None:
        """Writes a text; not for checkpoints, of which there are many."""
        if kind != "checkpoint":
            self._text(kind, facts, int(facts.get("step", 0)))

    def end(self, status: str, message: str) -> None:
        """Writes a text about the end."""
        self._text("end", {"status": status, "message": message}, 0)
        self._open().close()

    def for_run(self, seed: int) -> TensorBoard:
        """A logger to a folder in this one."""
        return TensorBoard(Path(self.folder) / f"seed-{seed}")

    def _text(self, tag: str, facts: Mapping[str, Json], step: int) -> None:
        self._open().add_text(tag, "  \n".join(f"{name}: {value}" for name, value in facts.items()), step)


class MLflow(_Store):
    """Writes a run to a tracking store of MLflow; it needs the extra `mlflow`.

    A store is a local SQLite file or a server. When a run with a run folder is resumed, it continues the run of the
    store that has this folder; MLflow then keeps both values of a step that was evaluated twice.

    Args:
        uri: of the store: "sqlite:///runs.db", "http://..."; None = what MLflow is set to, for instance by
            MLFLOW_TRACKING_URI. MLflow itself now refuses stores of plain files unless told otherwise.
        experiment: the name of the experiment; it is made if it does not exist.
        name: of the run; None = the solver and the seed. With several seeds each run has its seed in its name.
    """

    def __init__(self, uri: str | None = None, experiment: str = "bilevel", name: str | None = None):
        require("MLflow", "mlflow", "mlflow")
        self.uri, self.experiment, self.name = uri, experiment, name
        self._run = ""
        self._names: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"MLflow({self.uri!r}, experiment={self.experiment!r})"

    def start(self, facts: Facts) -> None:
        """Makes the run in the store, or finds it again."""
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

        self._names = plain_names(facts.tasks, REFUSED_BY_MLFLOW)
        with _making:
            self._opened = MlflowClient(self.uri)
            known = self._opened.get_experiment_by_name(self.experiment)
            experiment = self._opened.create_experiment(self.experiment) if known is None else known.experiment_id
        self._run = self._found(experiment, facts) or self._made(experiment, facts)

    def log(self, row: Evaluation) -> None:
        """Writes a value of each metric."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(time.time() * 1000)
        metrics = [Metric(name, number, now, row.step) for name, number in row.scalars(self._names).items()]
        self._open().log_batch(self._run, metrics=metrics)

    def event(self, kind: str, facts: Mapping[str, Json]) -> None:
        """Sets a tag to the last event of its kind; not for checkpoints."""
        if kind != "checkpoint":
            self._open().set_tag(self._run, f"bilevel.{kind}", str(dict(facts))[:MOST_LETTERS])

    def end(self, status: str, message: str) -> None:
        """Ends the run, with its status and message as tags."""
        client = self._open()
        client.set_tag(self._run, "bilevel.status", status)
        client.set_tag(self._run, "bilevel.message", message[:MOST_LETTERS])
        client.set_terminated(self._run, STATUSES.get(status, "FAILED"))

    def for_run(self, seed: int) -> MLflow:
        """A logger to a run of its own in the same experiment."""
        return MLflow(self.uri, self.experiment, _seed_name(self.name, seed))

    def _found(self, experiment: str, facts: Facts) -> str | None:
        """The run in the store that a resumed run continues."""
        if not facts.step or facts.folder is None:
            return None
        known = self._open().search_runs([experiment], f"tags.`{FOLDER_TAG}` = '{_hash(facts.folder)}'", max_results=1)
        if not known:
            return None
        self._open().update_run(known[0].info.run_id, "RUNNING")
        return known[0].info.run_id

    def _made(self, experiment: str, facts: Facts) -> str:
        client = self._open()
        tags = {} if facts.folder is None else {FOLDER_TAG: _hash(facts.folder)}
        run = client.create_run(experiment, run_name=_name(self.name, facts), tags=tags).info.run_id
        for param, value in {**_told(facts), "tasks": len(facts.tasks)}.items():
            client.log_param(run, param, str(value)[:MOST_LETTERS])
        return run


def _hash(folder: str) -> str:
    return hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()


class WandB(_Store):
    """Writes a run for Weights & Biases into a local folder; it needs the extra `wandb`.

    Nothing is sent until you call `wandb sync folder/wandb/offline-run-*`. When a run is resumed, each process writes
    an offline run of its own, in the group of the run.

    Args:
        folder: in which the folder `wandb` is made.
        project: the name of the project.
        name: of the run; None = the solver and the seed. With several seeds each run has its seed in its name.
    """

    def __init__(self, folder: str | os.PathLike[str] = ".", project: str = "bilevel", name: str | None = None):
        require("WandB", "wandb", "wandb")
        self.folder, self.project, self.name = folder, project, name

    def __repr__(self) -> str:
        return f"WandB({str(self.folder)!r}, project={self.project!r})"

    def start(self, facts: Facts) -> None:
        """Makes the offline run."""
        import wandb  # pyright: ignore[reportMissingImports]

        Path(self.folder).mkdir(parents=True, exist_ok=True)  # without it, wandb writes elsewhere
        self._opened = wandb.init(
            project=self.project,
            name=_name(self.name, facts),
            group=None if facts.folder is None else Path(facts.folder).absolute().name,
            dir=os.fspath(self.folder),
            mode="offline",
            config={**_told(facts), "tasks": len(facts.tasks), "resumed at step": facts.step},
            reinit="create_new",  # runs of several seeds exist at once
            # The terminal, the code and the figures of the machine belong to the caller.
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True, x_disable_meta=True
            ),
        )

    def log(self, row: Evaluation) -> None:
        """Writes a row of the history."""
        self._open().log(row.scalars(), step=row.step)

    def event(self, kind: str, facts: Mapping[str, Json]) -> None:
        """Sets an entry of the summary to the last event of its kind; not for checkpoints."""
        if kind != "checkpoint":
            self._open().summary[kind] = {name: str(value) for name, value in facts.items()}

    def end(self, status: str, message: str) -> None:
        """Ends the run, with its status and message in the summary."""
        run = self._open()
        run.summary.update({"status": status, "message": message})
        run.finish(exit_code=0 if status in ("converged", "finished", "stopped early") else 1)

    def for_run(self, seed: int) -> WandB:
        """A logger to a run of its own in the same project."""
        return WandB(self.folder, self.project, _seed_name(self.name, seed))
