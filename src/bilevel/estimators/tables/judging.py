"""Judges the models task by task on held-out rows, and says whether the robust model was worth it.

The verdict compares worst losses by a paired bootstrap: rows of each task are drawn with replacement, the same rows for
all models, and each draw gives the worst loss over the tasks for every model. The difference between the worst losses
of two models is within noise if the middle 95 % of the draws contain 0. This is the noise from which rows are held out;
another seed of the training would add to it.

Reference: Efron, Tibshirani, An Introduction to the Bootstrap, 1993, chapter 16 on paired differences.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bilevel._core.documents import Fields
from bilevel.estimators.tables import baseline_models
from bilevel.estimators.tables.columns import CLASSIFICATION

POOLED, ONE_EACH, AVERAGE, ROBUST = "pooled", "one each", "min-avg", "robust"
MODELS: tuple[str, ...] = (POOLED, ONE_EACH, AVERAGE, ROBUST)
WORDS = {POOLED: "one pooled model", ONE_EACH: "one model a task", AVERAGE: "min-avg"}
DRAWS = 2000
BLOCKS = 1000  # with more rows in a task, means over this many random blocks are drawn in place of rows
LEVEL = 0.95


def loss_unit(kind: str) -> str:
    """What losses are measured in, for classification or regression."""
    return "cross-entropy" if kind == CLASSIFICATION else "squared error in units of the target's variance"


@dataclasses.dataclass(frozen=True)
class TaskScores:
    """The losses and scores of one task by model; NaN if it has too few rows to be scored."""

    task: str
    rows: int  # of the task in all
    held_out: int
    losses: Mapping[str, float]
    scores: Mapping[str, float]  # accuracy, or R2
    weight: float  # in the robust model

    @property
    def numbers(self) -> list[float]:
        """The losses of all models, then their scores."""
        return [by_model[model] for by_model in (self.losses, self.scores) for model in MODELS]

    @property
    def is_scored(self) -> bool:
        """Whether the task counts in the worst and the mean loss."""
        return self.held_out > 0


@dataclasses.dataclass(frozen=True)
class Outputs:
    """The predictions of the models for held-out rows, and the true targets."""

    target: np.ndarray  # numbers of classes, or standardised numbers
    task: np.ndarray
    of: Mapping[str, np.ndarray]  # by model: probabilities of all classes, or values

    def losses(self) -> dict[str, np.ndarray]:
        """The loss of each row, by model."""
        return {model: baseline_models.losses(outputs, self.target) for model, outputs in self.of.items()}

    def lines(self, names: list[str], rows: np.ndarray, weights: Mapping[str, float]) -> list[TaskScores]:
        """The scores of the tasks, the worst first, and those that are not scored last."""
        losses = self.losses()
        parts = baseline_models.by_task(self.task, len(names))
        nothing = dict.fromkeys(self.of, float("nan"))
        found = []
        for name, count, own in zip(names, rows.tolist(), parts, strict=True):
            by_model = {model: float(np.mean(loss[own])) for model, loss in losses.items()} if len(own) else nothing
            scores = {model: self._score(model, own) for model in self.of} if len(own) else nothing
            found.append(TaskScores(name, count, len(own), by_model, scores, weights.get(name, 0.0)))
        return sorted(found, key=lambda line: (not line.is_scored, -line.losses[ROBUST] if line.is_scored else 0))

    def _score(self, model: str, own: np.ndarray) -> float:
        outputs, target = self.of[model][own], self.target[own]
        if outputs.ndim == 2:
            return float(np.mean(np.argmax(outputs, axis=1) == target))
        found = r2(target, outputs)
        return float("nan") if found is None else found


def r2(target: np.ndarray, outputs: np.ndarray) -> float | None:
    """R2; None if all targets are equal, or there are none."""
    spread = float(np.sum((target - target.mean()) ** 2)) if len(target) else 0.0
    return 1 - float(np.sum((outputs - target) ** 2)) / spread if spread else None


def scores_as_json(line: TaskScores) -> dict[str, Any]:
    """The scores of a task as JSON, with null for NaN."""
    plain = {model: {"loss": _plain(line.losses[model]), "score": _plain(line.scores[model])} for model in MODELS}
    return {"task": line.task, "rows": line.rows, "held_out": line.held_out, **plain, "weight": line.weight}


def scores_from_json(document: Any, where: str) -> TaskScores:
    """Restores the scores of a task from JSON that is not trusted."""
    fields = Fields(document, f"{where}: a task")
    own = {model: Fields(fields.mapping(model), f"{where}: {model}") for model in MODELS}
    losses, scores = ({m: _number(own[m], what) for m in MODELS} for what in ("loss", "score"))
    return TaskScores(
        fields.text("task"), fields.whole("rows"), fields.whole("held_out"), losses, scores, fields.number("weight")
    )


def _plain(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _number(fields: Fields, name: str) -> float:
    return float("nan") if fields.document.get(name, 0) is None else fields.number(name)


# ------------------------------------------------------------------ the verdict


class Gain(NamedTuple):
    """By how much the worst loss of another model exceeds that of the robust model, with an interval."""

    difference: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether 0 is in the interval."""
        return self.low <= 0 <= self.high


class Verdict(NamedTuple):
    """Worst and mean losses, and what the robust model gains over each of the others."""

    worst: Mapping[str, float]
    mean: Mapping[str, float]
    worst_task: Mapping[str, str]
    gains: Mapping[str, Gain]  # of the other models
    tasks: int  # that were scored

    @property
    def best_other(self) -> str:
        """The best of the others, by its worst loss."""
        return min(self.gains, key=lambda model: self.worst[model])

    @property
    def answer(self) -> str:
        """Yes, no, or within noise: against the best of the others."""
        gain = self.gains[self.best_other]
        return "within noise" if gain.is_noise else "yes" if gain.difference > 0 else "no"

    def sentence(self) -> str:
        """The verdict in one sentence."""
        best, gain = self.best_other, self.gains[self.best_other]
        begin = {
            "yes": "Robust was worth it here",
            "no": "Robust was not worth it here",
            "within noise": "Robust made no difference beyond noise here",
        }[self.answer]
        ours, theirs = (f"{_short(self.worst[model])} ({self.worst_task[model]})" for model in (ROBUST, best))
        interval = f"{LEVEL:.0%} interval {_apart(gain.low)} to {_apart(gain.high)}"
        return (
            f"{begin}: its worst loss on rows held out is {ours}, and that of the best of the others, {WORDS[best]}, "
            f"{theirs}, which is {_apart(gain.difference)} ({interval}), while mean losses are "
            f"{_short(self.mean[ROBUST])} and {_short(self.mean[best])}."
        )

    def against(self) -> str:
        """The differences to all other models in one sentence."""
        parts = [
            f"{WORDS[model]} {_short(gain.difference)} ({_short(gain.low)} to {_short(gain.high)})"
            + ", within noise" * gain.is_noise
            for model, gain in self.gains.items()
        ]
        return f"Worst losses of the others less robust's, with {LEVEL:.0%} intervals: {'; '.join(parts)}."


def _apart(difference: float) -> str:
    """A difference in words.

    >>> _apart(0.25), _apart(-0.5)
    ('0.25 higher', '0.5 lower')
    """
    return f"{_short(abs(difference))} {'lower' if difference < 0 else 'higher'}"


def verdict(losses: Mapping[str, np.ndarray], task: np.ndarray, names: list[str], seed: int) -> Verdict:
    """Compares the models by the loss of each held-out row, which `task` numbers."""
    stacked = np.column_stack([losses[model] for model in MODELS])
    generator, numbers = np.random.default_rng(seed), np.unique(task)
    own = [stacked[task == number] for number in numbers]
    means = np.array([rows.mean(axis=0) for rows in own])
    highest = np.full((DRAWS, len(MODELS)), -np.inf)
    for rows in own:
        np.maximum(highest, _drawn(rows, generator), out=highest)
    worst, mean = (dict(zip(MODELS, of(means, axis=0).tolist(), strict=True)) for of in (np.max, np.mean))
    worst_task = {model: names[numbers[k]] for model, k in zip(MODELS, means.argmax(axis=0), strict=True)}
    gains = {}
    for place, model in enumerate(MODELS[:-1]):
        difference = highest[:, place] - highest[:, -1]
        low, high = np.quantile(difference, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        gains[model] = Gain(worst[model] - worst[ROBUST], float(low), float(high))
    return Verdict(worst, mean, worst_task, gains, len(numbers))


def _drawn(rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Means over rows drawn with replacement, (draws, models)."""
    if len(rows) > BLOCKS:
        shuffled = generator.permutation(len(rows))
        edges = np.linspace(0, len(rows), BLOCKS, endpoint=False).astype(int)
        rows = np.add.reduceat(rows[shuffled], edges) / np.diff(np.append(edges, len(rows)))[:, None]
    count = len(rows)
    return generator.multinomial(count, np.full(count, 1 / count), DRAWS) @ rows / count


def verdict_as_json(found: Verdict) -> dict[str, Any]:
    """A verdict as JSON."""
    gains = {model: gain._asdict() | {"within_noise": gain.is_noise} for model, gain in found.gains.items()}
    told = {"rival": found.best_other, "worth_it": found.answer, "says": found.sentence()}
    return {**found._asdict(), "gains": gains, **told}


def verdict_from_json(document: Any, where: str) -> Verdict:
    """Restores a verdict from JSON that is not trusted."""
    fields = Fields(document, f"{where}: verdict")
    worst, mean, task, gains = (Fields(fields.mapping(name), f"{where}: {name}") for name in Verdict._fields[:4])
    gain = {model: Fields(gains.mapping(model), f"{where}: gains") for model in MODELS[:-1]}
    return Verdict(
        {model: worst.number(model) for model in MODELS},
        {model: mean.number(model) for model in MODELS},
        {model: task.text(model) for model in MODELS},
        {model: Gain(*map(own.number, Gain._fields)) for model, own in gain.items()},
        fields.whole("tasks", least=1),
    )


def _short(value: float) -> str:
    return f"{value:.3g}"
