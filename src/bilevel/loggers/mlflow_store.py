"""MLflow's tracking stores: a local SQLite file, or a server."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from typing import Any

from bilevel.loggers.base import Facts, Logger, plain_names, require
from bilevel.loggers.evaluation import Evaluation

REFUSED = r"[^-\w. ]|^\.+$"  # in the name of a task: a metric's is one of a file to MLflow, folders and all
MOST_LETTERS = 5000  # of a tag
STATUSES = {
    "converged": "FINISHED",
    "finished": "FINISHED",
    "stopped early": "FINISHED",
    "interrupted": "KILLED",
}  # others: FAILED
FOLDER_TAG = "bilevel.folder"  # its hash: a filter has no way to write every path

_making = threading.Lock()  # a new store makes its tables at the first use, which two threads must not do at once


class MLflow(Logger):
    """Writes a run to a tracking store of MLflow; it needs the extra `mlflow`.

    A run with a run folder that is resumed goes on in the run of the store that has this folder; MLflow then keeps
    both values of a step that was evaluated twice.

    Args:
        uri: of the store: "sqlite:///runs.db", "http://..."; None = what MLflow is set to, by MLFLOW_TRACKING_URI for
            instance. Its stores of plain files are ones that MLflow itself refuses now unless told otherwise.
        experiment: the name of the experiment; it is made where there is none.
        name: of the run; None = the solver and the seed. With several seeds each run has its seed in its name.
    """

    def __init__(self, uri: str | None = None, experiment: str = "bilevel", name: str | None = None):
        require("MLflow", "mlflow", "mlflow")
        self.uri, self.experiment, self.name = uri, experiment, name
        self._client: Any = None
        self._run = ""
        self._names: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"MLflow({self.uri!r}, experiment={self.experiment!r})"

    def start(self, facts: Facts) -> None:
        """Makes the run, or finds it again."""
        from mlflow import MlflowClient  # pyright: ignore[reportMissingImports]

        self._names = plain_names(facts.tasks, REFUSED)
        with _making:
            self._client = MlflowClient(self.uri)
            experiment = self._experiment()
        self._run = self._found(experiment, facts) or self._made(experiment, facts)

    def log(self, row: Evaluation) -> None:
        """A value of each metric."""
        from mlflow.entities import Metric  # pyright: ignore[reportMissingImports]

        now = int(time.time() * 1000)
        metrics = [Metric(name, number, now, row.step) for name, number in row.scalars(self._names).items()]
        self._open().log_batch(self._run, metrics=metrics)

    def event(self, kind: str, facts: Mapping[str, Any]) -> None:
        """A tag with the last of its kind; checkpoints are not told."""
        if kind != "checkpoint":
            self._open().set_tag(self._run, f"bilevel.{kind}", str(dict(facts))[:MOST_LETTERS])

    def end(self, status: str, message: str) -> None:
        """Ends the run, with how it ended as tags."""
        client = self._open()
        client.set_tag(self._run, "bilevel.status", status)
        client.set_tag(self._run, "bilevel.message", message[:MOST_LETTERS])
        client.set_terminated(self._run, STATUSES.get(status, "FAILED"))

    def for_run(self, seed: int) -> MLflow:
        """A run of its own in the same experiment."""
        return MLflow(self.uri, self.experiment, f"{self.name}, seed {seed}" if self.name else None)

    def _open(self) -> Any:
        if self._client is None:
            raise RuntimeError(f"{self!r} was not started")
        return self._client

    def _experiment(self) -> str:
        client = self._open()
        found = client.get_experiment_by_name(self.experiment)
        return client.create_experiment(self.experiment) if found is None else found.experiment_id

    def _found(self, experiment: str, facts: Facts) -> str | None:
        """The run of the store that a resumed run goes on in."""
        if not facts.step or facts.folder is None:
            return None
        known = self._open().search_runs([experiment], f"tags.`{FOLDER_TAG}` = '{_hash(facts.folder)}'", max_results=1)
        if not known:
            return None
        self._open().update_run(known[0].info.run_id, "RUNNING")
        return known[0].info.run_id

    def _made(self, experiment: str, facts: Facts) -> str:
        client, name = self._open(), self.name or f"{facts.title}, seed {facts.seed}"
        tags = {} if facts.folder is None else {FOLDER_TAG: _hash(facts.folder)}
        run = client.create_run(experiment, run_name=name, tags=tags).info.run_id
        told = {"solver": facts.solver, "seed": facts.seed, "steps": facts.steps, "bilevel": facts.version}
        for param, value in {**told, "tasks": len(facts.tasks)}.items():
            client.log_param(run, param, str(value)[:MOST_LETTERS])
        return run


def _hash(folder: str) -> str:
    return hashlib.sha256(os.path.abspath(folder).encode()).hexdigest()
