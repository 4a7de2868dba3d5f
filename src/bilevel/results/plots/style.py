"""How pictures look: colours, markers, letters."""

from __future__ import annotations

from typing import Any

# Okabe and Ito, "Color universal design", 2008: distinguishable for all readers. Yellow is last, being faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
GREY, PALE = "#767676", "#C4C4C4"
MARKERS = ("o", "s", "^", "D")  # used in turn when the colours repeat

TITLE_SIZE, TITLE_LENGTH = 11, 96
STYLE: dict[Any, Any] = {
    **{"font.family": "DejaVu Sans", "font.size": 9, "axes.labelsize": 9.5, "figure.titlesize": TITLE_SIZE},
    **{"legend.fontsize": 8.5, "xtick.labelsize": 8.5, "ytick.labelsize": 8.5, "text.usetex": False},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY, "axes.linewidth": 0.8},
    **{"axes.grid": True, "axes.axisbelow": True, "grid.color": "#E8E8E8", "grid.linewidth": 0.7},
    **{"xtick.color": "#404040", "ytick.color": "#404040", "lines.linewidth": 1.6, "lines.markersize": 4.5},
    **{"figure.facecolor": "white", "axes.facecolor": "white", "savefig.facecolor": "white"},
    **{"savefig.bbox": "standard", "svg.hashsalt": "bilevel"},
    **{"pdf.fonttype": 42, "svg.fonttype": "none"},  # text stays text
}
DPI = 200
MARKED_POINTS = 20  # a line with this many points or fewer shows them


LINES = {"validation": "-", "selection": ":", "test": "--"}


def line_look(colour: str, marker: str, rows: str, points: int) -> dict[str, Any]:
    """Lines of selection rows are dotted, of test rows dashed, both hollow; the points of short lines are marked."""
    hollow = rows != "validation"
    look = {"color": colour, "linestyle": LINES[rows], "markerfacecolor": "white" if hollow else colour}
    return look | {"marker": marker if points <= MARKED_POINTS else None}
