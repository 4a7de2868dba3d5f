"""How well each model does on the rows held out, task by task."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from bilevel._core.documents import Fields
from bilevel.tables import rivals

POOLED, ONE_EACH, AVERAGE, ROBUST = "pooled", "one each", "min-avg", "robust"
MODELS: tuple[str, ...] = (POOLED, ONE_EACH, AVERAGE, ROBUST)


@dataclasses.dataclass(frozen=True)
class Line:
    """One task: losses and scores by model, NaN where it has too few rows to be scored."""

    task: str
    rows: int  # of the task in all
    held_out: int
    losses: Mapping[str, float]
    scores: Mapping[str, float]  # accuracy, or R2
    weight: float  # in the robust model

    @property
    def is_scored(self) -> bool:
        """Whether it counts in the worst and the mean."""
        return self.held_out > 0


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What the models say of the rows held out, beside what is true."""

    target: np.ndarray  # numbers of classes, or standardised numbers
    task: np.ndarray
    of: Mapping[str, np.ndarray]  # by model: probabilities of all classes, or values

    def losses(self) -> dict[str, np.ndarray]:
        """Of each row, by model."""
        return {model: rivals.losses(outputs, self.target) for model, outputs in self.of.items()}

    def lines(self, names: list[str], rows: np.ndarray, weights: Mapping[str, float]) -> list[Line]:
        """Tasks, the worst first, and those that are not scored last."""
        losses = self.losses()
        order = np.argsort(self.task, kind="stable")
        parts = np.split(order, np.cumsum(np.bincount(self.task, minlength=len(names)))[:-1])
        nothing = dict.fromkeys(self.of, float("nan"))
        found = []
        for name, count, own in zip(names, rows.tolist(), parts, strict=True):
            by_model = {model: float(np.mean(loss[own])) for model, loss in losses.items()} if len(own) else nothing
            scores = {model: self._score(model, own) for model in self.of} if len(own) else nothing
            found.append(Line(name, count, len(own), by_model, scores, weights.get(name, 0.0)))
        return sorted(found, key=lambda line: (not line.is_scored, -line.losses[ROBUST] if line.is_scored else 0))

    def _score(self, model: str, own: np.ndarray) -> float:
        outputs, target = self.of[model][own], self.target[own]
        if outputs.ndim == 2:
            return float(np.mean(np.argmax(outputs, axis=1) == target))
        spread = float(np.sum((target - target.mean()) ** 2))
        return float("nan") if spread == 0 else 1 - float(np.sum((outputs - target) ** 2)) / spread


def described(line: Line) -> dict[str, Any]:
    """As JSON, null for NaN."""
    plain = {model: {"loss": _plain(line.losses[model]), "score": _plain(line.scores[model])} for model in MODELS}
    return {"task": line.task, "rows": line.rows, "held_out": line.held_out, **plain, "weight": line.weight}


def restored(document: Any, where: str) -> Line:
    """From JSON that is not trusted."""
    fields = Fields(document, f"{where}: a task")
    own = {model: Fields(fields.mapping(model), f"{where}: {model}") for model in MODELS}
    losses, scores = ({m: _number(own[m], what) for m in MODELS} for what in ("loss", "score"))
    return Line(
        fields.text("task"), fields.whole("rows"), fields.whole("held_out"), losses, scores, fields.number("weight")
    )


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _number(fields: Fields, name: str) -> float:
    return float("nan") if fields.document.get(name, 0) is None else fields.number(name)
