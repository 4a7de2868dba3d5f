"""What a page says in words: the verdict, how it compares, what was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from bilevel.report.subject import Subject, shortened
from bilevel.report.tables import number
from bilevel.results.result import Result
from bilevel.weightings.baselines import WorstRegret

EQUAL = 0.005  # a difference of less than this, relative, is none


def verdict(subject: Subject) -> str:
    """How it ended, the worst loss and the worst task, in one sentence."""
    runs = subject.runs
    names = Counter(shortened(str(run.worst_task), 60) for run in runs)
    worst, times = names.most_common(1)[0]
    loss, mean = subject.worst("validation"), subject.mean("validation")
    if not subject.is_several:
        ended = f"{subject.label} {_ended(runs[0].status)} after {runs[0].steps:,} steps{_stands(runs[0])}"
        losses = f"with a validation loss of {short(loss[0])}; the mean is {short(mean[0])}"
        return f"{ended}: the worst task is “{worst}” {losses}.{_regret(subject)}"
    counts = Counter(run.status for run in runs)
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    spread = f"{short(np.median(loss))} (median; from {short(loss.min())} to {short(loss.max())})"
    return (
        f"{subject.label}, {len(runs)} runs ({statuses}): the worst validation loss is {spread}, "
        f"in {times} of {len(runs)} runs that of “{worst}”; the mean is {short(np.median(mean))}.{_regret(subject)}"
    )


def _regret(subject: Subject) -> str:
    """The worst regret on validation rows and whose it is, as a further sentence; "" where baselines are not known."""
    found = subject.worst_regrets("validation")
    if not found:
        return ""
    task, times = Counter(shortened(worst.task, 60) for worst in found).most_common(1)[0]
    whose = f"in {times} of {len(found)} runs that of “{task}”" if len(found) > 1 else f"that of “{task}”"
    return f" The worst regret, a loss less what its task could reach, is {short(_median(found))}, {whose}."


def _median(found: Sequence[WorstRegret]) -> float:
    return float(np.median([worst.value for worst in found]))


def _ended(status: str) -> str:
    """As a verb."""
    return {"interrupted": "was interrupted", "callback failed": "ended by a callback that failed"}.get(status, status)


def _stands(run: Result) -> str:
    """Whether its loss had stopped changing, unless how it ended says so."""
    return "" if run.verdict in ("not known", run.status) else f" ({run.verdict})"


def comparison(subject: Subject, against: Subject) -> list[str]:
    """How the worst and the mean loss compare with those of other runs, on each kind of rows."""
    said = []
    for role in subject.roles:
        if not against.has(role):
            continue
        pairs = [
            (name, float(np.median(getattr(subject, name)(role))), float(np.median(getattr(against, name)(role))))
            for name in ("worst", "mean")
        ]
        pairs = [(f"{name} loss", own, other) for name, own, other in pairs]
        own, other = subject.worst_regrets(role), against.worst_regrets(role)
        if own and other:
            pairs.append(("worst regret", _median(own), _median(other)))
        parts = [
            f"the {name} is {_change(own, other)} ({short(own)} against {short(other)})" for name, own, other in pairs
        ]
        said.append(f"Against {against.label}, on {role} rows: {'; '.join(parts)}.")
    return said


def _change(own: float, other: float) -> str:
    """In words: 10 % lower.

    >>> _change(0.9, 1.0), _change(1.1, 1.0), _change(1.0, 1.0), _change(-1.0, 2.0)
    ('10 % lower', '10 % higher', 'the same', 'lower')
    """
    if not np.isfinite(own) or not np.isfinite(other):
        return "not comparable"
    if abs(own - other) <= EQUAL * abs(other):
        return "the same"
    word = "lower" if own < other else "higher"
    return f"{abs(own - other) / other:.0%} {word}".replace("%", " %") if min(own, other) > 0 else word


def findings(subject: Subject) -> list[str]:
    """What should be known of the runs; of several, with the seeds that it was found in."""
    seeds: dict[str, list[str]] = {}
    for run in subject.runs:
        for sentence in _found(run):
            seeds.setdefault(sentence, []).append(str(int(run.seed)))
    if not subject.is_several:
        return list(seeds)
    return [f"Seed{'s' * (len(own) > 1)} {', '.join(own)}: {sentence}" for sentence, own in seeds.items()]


def _found(run: Result) -> list[str]:
    """The findings of one run as sentences; divergences before them."""
    messages = [run.message] if run.message and run.status not in ("converged", "finished") else []
    return [*(event.line for event in run.divergences), *messages, *map(str, run.findings)]


def differing_tasks(subject: Subject) -> str | None:
    """A remark where not all runs have the same tasks."""
    if len(subject.alike) == len(subject.runs):
        return None
    count = len(subject.alike)
    whose = "run" if count == 1 else f"{count} runs"
    return f"The runs have different tasks: what follows by task is of the {whose} with those of the first."


def short(value: float) -> str:
    """A number in a sentence."""
    return "not a number" if np.isnan(value) else number(float(value), 4)
