"""Charts of a page: lines over the steps or over the share of tasks, and the losses of the worst tasks.

Charts are Vega-Lite specifications. Text from users (names of tasks) is only ever data in a specification, never a
field or an expression of it. Colours are variables of the page, so a chart is light or dark like the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bilevel.report.subject import LABEL, OTHERS, Band, Frame, Subject, distinct
from bilevel.report.tables import PageTable, as_place, behind, matched, number, worst_first
from bilevel.results.plots.panels import log_limits

Spec = dict[str, Any]

COLOURS = tuple(f"var(--series-{i})" for i in range(1, 7))  # defined in template/page.css
QUIET = "var(--series-quiet)"
# The same as in page.css. Vega needs it too, because it measures the width of text before it draws.
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'
LEGEND_COLUMNS = "width < 400 ? 1 : width < 600 ? 2 : 3"  # from the width of the chart
# A tooltip shows this text as it is. The item nearest to the pointer has the datum of its mark inside its own.
TIP = {"expr": "datum.tip || datum.datum.tip"}
HERE = "datum.k === place"  # `place` is the position of the pointer or the slider
DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [5, 1], [1, 3])
STROKE = {"symbolType": "stroke", "symbolStrokeWidth": 3}  # a legend of lines
FEW = 12  # up to this many points of a line are marked
FAINT = 5  # with this many lines, bands are fainter
TASKS = 20  # drawn one by one at most
SHAPES = ("circle", "diamond", "triangle-up")
ROW = 28  # pixels


class Chart(NamedTuple):
    """A chart, and its content in words."""

    title: str
    description: str
    spec: Spec
    slider: str  # what the slider of the chart selects
    readouts: list[str]  # the text at each of its places
    table: PageTable | None  # None: the page has the table anyway


def base(height: int, place: int) -> Spec:
    """A chart as wide as the page, with the first place of its slider."""
    text = {"labelColor": "currentColor", "titleColor": "currentColor", "labelFontSize": 12, "titleFontSize": 12}
    lines = {"gridColor": "var(--grid)", "domainColor": "var(--rule)", "tickColor": "var(--rule)"}
    symbols = {"symbolBaseFillColor": "currentColor", "symbolBaseStrokeColor": "currentColor", "symbolOpacity": 1}
    legend = {
        **{"orient": "bottom", "columns": {"expr": LEGEND_COLUMNS}, "labelLimit": 190, "symbolSize": 120},
        "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
    }
    config = {
        "font": FONT,
        "aria": False,  # a chart is one image, with a description
        "view": {"stroke": None},
        "axis": {**text, **lines, "titleFontWeight": "normal", "labelOverlap": True},
        "axisX": {"grid": False, "tickCount": 6},
        "axisY": {"tickCount": 6},
        "legend": {**text, **symbols, **legend},
    }
    size = {"width": "container", "height": height, "autosize": {"type": "fit-x", "contains": "padding"}}
    return {**size, "background": None, "config": config, "params": [{"name": "place", "value": place}]}


def nominal(field: str, domain: Sequence[str], values: Sequence[Any], legend: Spec | None = None) -> Spec:
    """An encoding by name: the names of the domain take the values in turn."""
    own = [values[i % len(values)] for i in range(len(domain))]
    scale = {"domain": list(domain), "range": own}
    return {"field": field, "type": "nominal", "scale": scale, "title": None, "legend": legend or {}}


def quantity(title: str, values: Sequence[np.ndarray]) -> Spec:
    """An axis of losses: logarithmic if they are positive and span more than a factor of ten, as in `bl.plot`."""
    limits = log_limits(values)
    linear = {"zero": False, "nice": True}
    scale = linear if limits is None else {"type": "log", "domain": [limits[0] / 1.1, limits[1] * 1.1]}
    return {"type": "quantitative", "title": title, "scale": scale}


def hovered(nearest: bool) -> list[Spec]:
    """A selection of the item under the pointer, which also moves the slider."""
    select = {"type": "point", "fields": ["k"], "nearest": nearest, "on": "pointerover", "clear": "pointerout"}
    return [{"name": "hovered", "select": select}]


def rounded(value: float) -> float | None:
    """Rounds to six digits. JSON has neither NaN nor infinity, so both become None."""
    return float(f"{value:.6g}") if np.isfinite(value) else None


# ------------------------------------------------------------------ lines


def line_chart(frame: Frame, title: str, description: str, unit: str) -> Chart:
    """A chart of a frame."""
    y = quantity(unit, [end for series in frame.series for end in series.band])
    points = [
        {"at": as_place(x), "what": series.what, "whose": series.whose}
        | {end: rounded(own[k]) for end, own in zip(("value", "low", "high"), series.band, strict=True)}
        for series in frame.series
        for k, x in enumerate(frame.places)
    ]
    bands = [_bands(frame, y)] if any(series.band.is_spread for series in frame.series) else []
    spec = base(260, len(frame.places) - 1) | {
        "data": {"values": points},
        "encoding": {"x": {"field": "at", "type": "quantitative", "title": frame.axis, "scale": {"nice": False}}},
        "layer": [*bands, _lines(frame, y), _ruler(frame)],
    }
    said = [f"{frame.at.format(number(as_place(x)))}: {_values_at(frame, k)}" for k, x in enumerate(frame.places)]
    return Chart(title, description, spec, frame.axis, said, behind(frame, title))


def _bands(frame: Frame, y: Spec) -> Spec:
    ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    opacity = 0.2 if len(frame.series) < FAINT else 0.1
    own = {**ends, "color": _colours(frame), "detail": {"field": "whose"}}
    return {"mark": {"type": "area", "opacity": opacity, "line": False}, "encoding": own}


def _lines(frame: Frame, y: Spec) -> Spec:
    """The lines; a click on the legend highlights one of them."""
    whose = list(dict.fromkeys(series.whose for series in frame.series))
    dashed = ("whose", whose) if len(whose) > 1 else ("what", _whats(frame))
    encoding = {
        "y": {**y, "field": "value"},
        "color": _colours(frame),
        "strokeDash": nominal(*dashed, DASHES, STROKE),
        "opacity": {"condition": {"param": "chosen", "value": 1}, "value": 0.15},
    }
    return {
        "mark": {"type": "line", "strokeWidth": 2, "point": len(frame.places) <= FEW},
        "params": [{"name": "chosen", "select": {"type": "point", "fields": ["what"]}, "bind": "legend"}],
        "encoding": encoding,
    }


def _ruler(frame: Frame) -> Spec:
    """A vertical line at the pointer or the slider, whose tooltip shows all values there."""
    rows = []
    for k, x in enumerate(frame.places):
        values = [f"{frame.name(series)}: {number(series.band.middle[k])}" for series in frame.series]
        tip = "\n".join([frame.at.format(number(as_place(x))), *values])
        rows.append({"k": k, "at": as_place(x), "tip": tip})
    return {
        "data": {"values": rows},
        "mark": {"type": "rule", "strokeWidth": 1, "color": "currentColor", "tooltip": TIP},
        "params": hovered(nearest=True),
        "encoding": {"opacity": {"condition": {"test": HERE, "value": 0.7}, "value": 0}},
    }


def _colours(frame: Frame) -> Spec:
    whats = _whats(frame)
    colours = [QUIET if what == OTHERS else COLOURS[i % len(COLOURS)] for i, what in enumerate(whats)]
    return nominal("what", whats, colours, STROKE)


def _whats(frame: Frame) -> list[str]:
    return list(dict.fromkeys(series.what for series in frame.series))


def _values_at(frame: Frame, k: int) -> str:
    parts: dict[str, list[str]] = {}
    for series in frame.series:
        parts.setdefault(series.whose, []).append(f"{series.what} = {number(series.band.middle[k], 4)}")
    return _joined({whose: ", ".join(own) for whose, own in parts.items()})


def _joined(parts: dict[str, str]) -> str:
    return "; ".join(f"{whose}: {part}" for whose, part in parts.items()) if len(parts) > 1 else "".join(parts.values())


# ------------------------------------------------------------------ tasks

Losses = list[tuple[Subject, dict[str, Band]]]  # of each subject, on each kind of rows


def task_chart(subject: Subject, against: Subject | None) -> Chart:
    """The losses of the worst tasks, beside those of other runs."""
    order = worst_first(subject)[:TASKS]
    names = distinct([subject.names[i] for i in order], LABEL)
    losses: Losses = [(subject, {role: subject.losses(role) for role in subject.roles})]
    if against is not None:
        shared = [role for role in subject.roles if against.has(role)]
        losses.append((against, {role: matched(subject, against, role) for role in shared}))
    axis = {"grid": True, "labelLimit": 170, "ticks": False, "domain": False}
    rows = {"field": "task", "type": "nominal", "scale": {"domain": names}, "title": None, "axis": axis}
    values = [
        {"k": k, "task": names[k], "role": role, "whose": subject.label}
        | {"tip": f"{names[k]}\n{subject.label}\n{role} loss: {number(float(band.middle[i]))}"}
        | {end: rounded(float(own[i])) for end, own in zip(("value", "low", "high"), band, strict=True)}
        for subject, own in losses
        for role, band in own.items()
        for k, i in enumerate(order)
    ]
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


def _layers(values: Sequence[Spec], labels: Sequence[str], roles: Sequence[str]) -> list[Spec]:
    """Ranges with points on them. Shapes show the kind of rows; colours too, or the subject if there are two."""
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
    parts = {
        subject.label: ", ".join(f"{role} = {number(float(band.middle[i]), 4)}" for role, band in own.items())
        for subject, own in losses
    }
    return _joined(parts)
