"""What all charts have in common: how they look, scales, and what stands for one where it cannot be seen.

Charts are Vega-Lite specifications. Text that users give (names of tasks) is only ever data in a specification, never a
field or an expression of it. Colours are the page's variables, so that a chart is light or dark as the page is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bilevel.report.tables import Table
from bilevel.results.plots.numbers import log_limits

Spec = dict[str, Any]

COLOURS = tuple(f"var(--series-{i})" for i in range(1, 7))  # template/page.css says which
QUIET = "var(--series-quiet)"
# As in page.css; named here too, because widths of texts are measured before they are drawn.
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif'
LEGEND_COLUMNS = "width < 400 ? 1 : width < 600 ? 2 : 3"  # from the width of the chart
# Text, which is shown as it is. What is nearest to the pointer has the datum of its mark within its own.
TIP = {"expr": "datum.tip || datum.datum.tip"}
HERE = "datum.k === place"  # `place` is where the pointer or the slider is


class Chart(NamedTuple):
    """A chart, and its content in words."""

    title: str
    description: str
    spec: Spec
    slider: str  # what the chart's slider goes through
    readouts: list[str]  # what it says at each place
    table: Table | None  # None: the table follows


def base(height: int, place: int) -> Spec:
    """A chart as wide as the page, whose slider begins at a place."""
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
    """An encoding by name: each name of the domain has the value in its place, the values in turn."""
    own = [values[i % len(values)] for i in range(len(domain))]
    scale = {"domain": list(domain), "range": own}
    return {"field": field, "type": "nominal", "scale": scale, "title": None, "legend": legend or {}}


def quantity(title: str, values: Sequence[np.ndarray]) -> Spec:
    """An axis of losses: logarithmic where they are positive and span more than a factor of ten, as in `bl.plot`."""
    limits = log_limits(values)
    linear = {"zero": False, "nice": True}
    scale = linear if limits is None else {"type": "log", "domain": [limits[0] / 1.1, limits[1] * 1.1]}
    return {"type": "quantitative", "title": title, "scale": scale}


def hovered(nearest: bool) -> list[Spec]:
    """A selection of what is under the pointer, which moves the slider too."""
    select = {"type": "point", "fields": ["k"], "nearest": nearest, "on": "pointerover", "clear": "pointerout"}
    return [{"name": "hovered", "select": select}]


def rounded(value: float) -> float | None:
    """Six digits; JSON has neither NaN nor infinity."""
    return float(f"{value:.6g}") if np.isfinite(value) else None
