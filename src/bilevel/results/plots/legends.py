"""Legends: of one panel, and of all panels of a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bilevel.results.plots.entries import Entry, plain_text
from bilevel.results.plots.numbers import BAND
from bilevel.results.plots.style import GREY, MARKERS, line_look

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

LABEL_LENGTH = 48  # letters of a label


def comparison_key(entries: list[Entry]) -> tuple[list[Artist], list[str]]:
    """The handles and names of a legend for all panels."""
    from matplotlib.lines import Line2D

    handles: list[Artist] = []
    for entry in entries:
        marker = entry.marker if entry.marker != MARKERS[0] else None
        handles.append(Line2D([], [], color=entry.colour, marker=marker, linewidth=2.2))
    names = [plain_text(entry.label, LABEL_LENGTH) for entry in entries]
    held_out = [rows for rows in ("selection", "test") if any(entry.has(rows) for entry in entries)]
    if held_out:
        handles += [Line2D([], [], **line_look(GREY, MARKERS[0], rows, 1)) for rows in ("validation", *held_out)]
        names += ["validation", *held_out]
    if any(len(entry.runs) > 1 for entry in entries):
        handles, names = [*handles, band_handle()], [*names, band_name(entries)]
    return handles, names


def band_handle() -> Artist:
    """The patch that represents the band over runs in a legend."""
    from matplotlib.patches import Patch

    return Patch(facecolor=GREY, alpha=0.3, linewidth=0)


def band_name(entries: list[Entry]) -> str:
    """What the band over runs is called in a legend."""
    counts = {len(entry.runs) for entry in entries}
    return f"{BAND[0]:.0%} to {BAND[1]:.0%} of {f'{counts.pop()} ' if len(counts) == 1 else ''}runs"


def add_legend(axes: Axes, handles: Sequence[Artist], names: list[str], room: int = 58) -> None:
    """A legend above its panel, where it covers nothing."""
    axes.legend(**in_columns(handles, names, room), loc="lower left", bbox_to_anchor=(0, 1), borderaxespad=0.2)


def in_columns(handles: Sequence[Artist], names: list[str], room: int) -> dict[str, Any]:
    """One row, or as many columns as there is room for, counted in letters."""
    lengths = [len(name) + 9 for name in names]  # with the handle
    columns = len(names) if sum(lengths) <= room else max(1, room // max(lengths))
    shape = {"ncols": columns, "frameon": False, "columnspacing": 1.4, "handlelength": 2.2}
    return {"handles": handles, "labels": names, **shape}
