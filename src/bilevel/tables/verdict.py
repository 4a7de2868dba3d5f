"""Whether robust was worth it: worst losses on rows held out, and how far they are known.

Rows of each task are drawn again, with replacement, the same for all models (a paired bootstrap), and each time the
worst loss over the tasks is taken for every model. A difference of two models' worst losses is within noise where the
middle 95 % of what the draws give has 0 in it. That is the noise of which rows were held out: another seed of the
training would add to it.

Reference: Efron, Tibshirani, An Introduction to the Bootstrap, 1993, chapter 16 on paired differences.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from bilevel._core.documents import Fields
from bilevel.tables.judging import AVERAGE, MODELS, ONE_EACH, POOLED, ROBUST

DRAWS = 2000
BLOCKS = 1000  # of a task's rows that are drawn at once: means over random blocks, where there are more rows
LEVEL = 0.95
WORDS = {POOLED: "one pooled model", ONE_EACH: "one model a task", AVERAGE: "min-avg"}


class Gain(NamedTuple):
    """By how much the worst loss of another model exceeds robust's."""

    difference: float
    low: float
    high: float

    @property
    def is_noise(self) -> bool:
        """Whether 0 is in the interval."""
        return self.low <= 0 <= self.high


class Verdict(NamedTuple):
    """Worst and mean losses, and what robust gains against each rival."""

    worst: Mapping[str, float]
    mean: Mapping[str, float]
    worst_task: Mapping[str, str]
    gains: Mapping[str, Gain]  # of the other models
    tasks: int  # that were scored

    @property
    def rival(self) -> str:
        """The best of the others, by its worst loss."""
        return min(self.gains, key=lambda model: self.worst[model])

    @property
    def answer(self) -> str:
        """Yes, no, or within noise: against the best of the others."""
        gain = self.gains[self.rival]
        return "within noise" if gain.is_noise else "yes" if gain.difference > 0 else "no"

    def sentence(self) -> str:
        """Plainly, in one sentence."""
        best, gain = self.rival, self.gains[self.rival]
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
        """The same of each of the others."""
        parts = [
            f"{WORDS[model]} {_short(gain.difference)} ({_short(gain.low)} to {_short(gain.high)})"
            + ", within noise" * gain.is_noise
            for model, gain in self.gains.items()
        ]
        return f"Worst losses of the others less robust's, with {LEVEL:.0%} intervals: {'; '.join(parts)}."


def _apart(difference: float) -> str:
    """In words.

    >>> _apart(0.25), _apart(-0.5)
    ('0.25 higher', '0.5 lower')
    """
    return f"{_short(abs(difference))} {'lower' if difference < 0 else 'higher'}"


def verdict(losses: Mapping[str, np.ndarray], task: np.ndarray, names: list[str], seed: int) -> Verdict:
    """From the loss of each row held out, by model.

    Args:
        losses: by model.
        task: the number of each row's task.
        names: of the tasks.
        seed: of the draws.
    """
    stacked = np.column_stack([losses[model] for model in MODELS])
    generator, numbers = np.random.default_rng(seed), np.unique(task)
    own = [stacked[task == number] for number in numbers]
    means = np.array([rows.mean(axis=0) for rows in own])
    highest = np.full((DRAWS, len(MODELS)), -np.inf)
    for rows in own:
        np.maximum(highest, _drawn(rows, generator), out=highest)
    worst: dict[str, float] = dict(zip(MODELS, means.max(axis=0).tolist(), strict=True))
    by_name = [names[numbers[place]] for place in means.argmax(axis=0)]
    gains = {}
    for place, model in enumerate(MODELS[:-1]):
        difference = highest[:, place] - highest[:, -1]
        low, high = np.quantile(difference, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        gains[model] = Gain(worst[model] - worst[ROBUST], float(low), float(high))
    mean: dict[str, float] = dict(zip(MODELS, means.mean(axis=0).tolist(), strict=True))
    return Verdict(worst, mean, dict(zip(MODELS, by_name, strict=True)), gains, len(numbers))


def _drawn(rows: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Means over rows that are drawn again, (draws, models)."""
    if len(rows) > BLOCKS:
        shuffled = generator.permutation(len(rows))
        edges = np.linspace(0, len(rows), BLOCKS, endpoint=False).astype(int)
        rows = np.add.reduceat(rows[shuffled], edges) / np.diff(np.append(edges, len(rows)))[:, None]
    count = len(rows)
    return generator.multinomial(count, np.full(count, 1 / count), DRAWS) @ rows / count


def described(found: Verdict) -> dict[str, Any]:
    """As JSON."""
    gains = {model: gain._asdict() | {"within_noise": gain.is_noise} for model, gain in found.gains.items()}
    return {**found._asdict(), "gains": gains, "rival": found.rival, "worth_it": found.answer, "says": found.sentence()}


def restored(document: Any, where: str) -> Verdict:
    """From JSON that is not trusted."""
    fields = Fields(document, f"{where}: verdict")
    parts = {
        name: Fields(fields.mapping(name), f"{where}: {name}") for name in ("worst", "mean", "worst_task", "gains")
    }
    gains = {m: Fields(parts["gains"].mapping(m), f"{where}: gains") for m in MODELS[:-1]}
    return Verdict(
        {m: parts["worst"].number(m) for m in MODELS},
        {m: parts["mean"].number(m) for m in MODELS},
        {m: parts["worst_task"].text(m) for m in MODELS},
        {m: Gain(*(gains[m].number(name) for name in Gain._fields)) for m in MODELS[:-1]},
        fields.whole("tasks", least=1),
    )


def _short(value: float) -> str:
    return f"{value:.3g}"
