"""Lines over the steps, or over the share of tasks, with bands where there is a spread."""

from __future__ import annotations

from typing import Any

from bilevel.report.frames import OTHERS, Frame
from bilevel.report.tables import as_place, behind, number
from bilevel.report.vega import COLOURS, HERE, QUIET, TIP, Chart, Spec, base, hovered, nominal, quantity, rounded

DASHES = ([1, 0], [7, 3], [2, 2], [9, 3, 2, 3], [5, 1], [1, 3])
STROKE = {"symbolType": "stroke", "symbolStrokeWidth": 3}  # a legend of lines
FEW = 12  # points of a line that are marked
FAINT = 5  # lines from which on bands are fainter


def lines(frame: Frame, title: str, description: str, unit: str) -> Chart:
    """A chart of a frame."""
    y = quantity(unit, [end for series in frame.series for end in series.band])
    spec = base(260, len(frame.places) - 1) | {
        "data": {"values": _long(frame)},
        "encoding": {"x": {"field": "at", "type": "quantitative", "title": frame.axis, "scale": {"nice": False}}},
        "layer": [*_bands(frame, y), _lines(frame, y), _ruler(frame)],
    }
    said = [f"{frame.at.format(number(as_place(x)))}: {_values(frame, k)}" for k, x in enumerate(frame.places)]
    return Chart(title, description, spec, frame.axis, said, behind(frame, title))


def _long(frame: Frame) -> list[Spec]:
    """A row for each point of each line."""
    return [
        {"at": as_place(x), "what": series.what, "whose": series.whose}
        | {end: rounded(own[k]) for end, own in zip(("value", "low", "high"), series.band, strict=True)}
        for series in frame.series
        for k, x in enumerate(frame.places)
    ]


def _bands(frame: Frame, y: Spec) -> list[Spec]:
    """The spreads, faint, below the lines."""
    if not any(series.band.is_spread for series in frame.series):
        return []
    ends = {"y": {**y, "field": "low"}, "y2": {"field": "high"}}
    opacity = 0.2 if len(frame.series) < FAINT else 0.1
    own = {**ends, "color": _colours(frame), "detail": {"field": "whose"}}
    return [{"mark": {"type": "area", "opacity": opacity, "line": False}, "encoding": own}]


def _lines(frame: Frame, y: Spec) -> Spec:
    """The lines; a click on the legend shows one of them alone."""
    whose = list(dict.fromkeys(series.whose for series in frame.series))
    dashed = ("whose", whose) if len(whose) > 1 else ("what", _whats(frame))
    encoding: dict[str, Any] = {
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
    """A line at the place that the pointer or the slider is at; its tooltip has all values there."""
    rows = [
        {"k": k, "at": as_place(x), "tip": "\n".join([frame.at.format(number(as_place(x))), *_named(frame, k)])}
        for k, x in enumerate(frame.places)
    ]
    return {
        "data": {"values": rows},
        "mark": {"type": "rule", "strokeWidth": 1, "color": "currentColor", "tooltip": TIP},
        "params": hovered(nearest=True),
        "encoding": {"opacity": {"condition": {"test": HERE, "value": 0.7}, "value": 0}},
    }


def _named(frame: Frame, k: int) -> list[str]:
    return [f"{frame.name(series)}: {number(series.band.middle[k])}" for series in frame.series]


def _colours(frame: Frame) -> Spec:
    whats = _whats(frame)
    colours = [QUIET if what == OTHERS else COLOURS[i % len(COLOURS)] for i, what in enumerate(whats)]
    return nominal("what", whats, colours, STROKE)


def _whats(frame: Frame) -> list[str]:
    return list(dict.fromkeys(series.what for series in frame.series))


def _values(frame: Frame, k: int) -> str:
    """All values at one place, in words."""
    parts: dict[str, list[str]] = {}
    for series in frame.series:
        parts.setdefault(series.whose, []).append(f"{series.what} = {number(series.band.middle[k], 4)}")
    if len(parts) == 1:
        return ", ".join(*parts.values())
    return "; ".join(f"{whose}: {', '.join(own)}" for whose, own in parts.items())
