"""The losses of the worst tasks: a row for each task, a point for each loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bilevel.report.frames import LABEL
from bilevel.report.subject import Band, Subject, distinct
from bilevel.report.tables import matched, number, worst_first
from bilevel.report.vega import COLOURS, HERE, TIP, Chart, Spec, base, hovered, nominal, quantity, rounded

TASKS = 20  # that are drawn one by one
SHAPES = ("circle", "diamond", "triangle-up")
ROW = 28  # pixels

Losses = list[tuple[Subject, dict[str, Band]]]  # of each subject, on each kind of rows


def tasks(subject: Subject, against: Subject | None) -> Chart:
    """The losses of the worst tasks, beside those of other runs."""
    order = worst_first(subject)[:TASKS]
    names = distinct([subject.names[i] for i in order], LABEL)
    losses: Losses = [(subject, {role: subject.losses(role) for role in subject.roles})]
    if against is not None:
        shared = [role for role in subject.roles if against.has(role)]
        losses.append((against, {role: matched(subject, against, role) for role in shared}))
    axis = {"grid": True, "labelLimit": 170, "ticks": False, "domain": False}
    rows = {"field": "task", "type": "nominal", "scale": {"domain": names}, "title": None, "axis": axis}
    values = _values(losses, order, names)
    spec = base(ROW * len(order), 0) | {
        "data": {"values": values},
        "encoding": {"y": rows},
        "layer": _layers(values, [one.label for one, _ in losses], subject.roles),
    }
    said = [f"{name} – {_said(losses, i)}" for name, i in zip(names, order, strict=True)]
    count = len(subject.names)
    which = "every task" if len(order) == count else f"the {len(order)} worst of {number(count)} tasks"
    several = ", medians over the runs with lines from the 10 % to the 90 % quantile" if subject.is_several else ""
    description = f"The loss of {which} at the end of the run, worst first{several}."
    title = "All tasks" if len(order) == count else "The worst tasks"
    return Chart(title, description, spec, "task", said, None)


def _values(losses: Losses, order: np.ndarray, names: Sequence[str]) -> list[Spec]:
    return [
        {"k": k, "task": names[k], "role": role, "whose": subject.label}
        | {"tip": f"{names[k]}\n{subject.label}\n{role} loss: {number(float(band.middle[i]))}"}
        | {end: rounded(float(own[i])) for end, own in zip(("value", "low", "high"), band, strict=True)}
        for subject, own in losses
        for role, band in own.items()
        for k, i in enumerate(order)
    ]


def _layers(values: Sequence[Spec], labels: Sequence[str], roles: Sequence[str]) -> list[Spec]:
    """Ranges, and points on them; the colour says whose where there are two subjects, and the shape which rows."""
    colour = nominal("whose", labels, COLOURS) if len(labels) > 1 else nominal("role", roles, COLOURS)
    x = quantity("loss", [np.array([value[end] for value in values], float) for end in ("value", "low", "high")])
    ranges = {"x": {**x, "field": "low"}, "x2": {"field": "high"}, "color": colour}
    points = {
        "x": {**x, "field": "value"},
        "color": colour,
        "shape": nominal("role", roles, SHAPES),
        "size": {"condition": {"test": HERE, "value": 190}, "value": 90},
    }
    point = {"type": "point", "filled": True, "opacity": 0.9, "tooltip": TIP}
    return [
        {"mark": {"type": "rule", "strokeWidth": 2, "opacity": 0.35}, "encoding": ranges},
        {"mark": point, "params": hovered(nearest=False), "encoding": points},
    ]


def _said(losses: Losses, i: int) -> str:
    """The losses of one task, in words."""
    parts = [
        ", ".join(f"{role} = {number(float(band.middle[i]), 4)}" for role, band in own.items()) for _, own in losses
    ]
    if len(parts) == 1:
        return parts[0]
    return "; ".join(f"{subject.label}: {part}" for (subject, _), part in zip(losses, parts, strict=True))
