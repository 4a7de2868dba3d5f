"""Writes docs/solvers.md from what the solvers declare and what their steps are counted to cost.

python docs/make_solvers.py        # about a minute: steps of every solver are run
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from bilevel.diagnostics.costs import KINDS, Cost
from bilevel.studies import catalogue

PAGE = Path(__file__).with_name("solvers.md")

INTRODUCTION = """# Solvers

Written by `python docs/make_solvers.py`; do not edit. `bilevel solvers --cost` shows the same on the command line.

Rates are numbers of samples until the squared gradient norm is below eps, as published for one task. "Our extension"
goes beyond the paper, without a theorem. "Keeps" is what a run stores besides x, y and the weights, for n tasks.
"""

COSTS = f"""## What a step costs

Calls per step and task, counted by `bl.cost` on {catalogue.STEPS} steps of every solver with its default options, at
given rates (an automatic lower rate adds one A v). A call is one evaluation on one batch; A = d2g/dy2 and J = d2g/dxdy.
A value that comes with a gradient, and a gradient on the way to a product, are free. f_x and f_y at one point on one
batch are one call, however many passes compute them, and so are g_x and g_y. Batches are all the data here, so that a
gradient that a step takes twice at one point counts once. Numbers with a fraction are averages: those methods refresh
at intervals, their loops grow, or two of their points are one in the first step. Methods that build matrices (STABLE)
make one product per number in y, here {catalogue.Y_SIZE}.
"""


def cells(cost: Cost | None) -> list[str]:
    """The numbers of a row."""
    return ["-"] * (len(KINDS) + 1) if cost is None else [f"{count:.4g}" for count in (*cost[: len(KINDS)], cost.total)]


def counted(text: str) -> dict[str, list[str]]:
    """The numbers that a page has, by solver."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text.partition(COSTS)[2], re.MULTILINE)
    return {name: [cell.strip() for cell in row.split("|")] for name, row in rows}


def page(costs: Mapping[str, list[str]]) -> str:
    """The page, with these numbers."""
    listings = catalogue.listings()
    cards = [(f"`{listing.name}`", listing.card) for listing in listings]
    said = [(name, card.problem, card.loops, card.constraint, card.rate, card.paper) for name, card in cards]
    numbers = [(f"`{listing.name}`", *costs.get(listing.name, cells(None))) for listing in listings]
    parts = [
        INTRODUCTION,
        _table(("solver", "problem", "loops", "constraint", "published rate", "paper"), said),
        COSTS,
        _table(("solver", *KINDS, "total"), numbers),
        "## One by one\n",
        *map(_section, listings),
    ]
    return "\n".join(parts)


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _section(listing: catalogue.Listing) -> str:
    card = listing.card
    return f"""### {listing.name}

Keeps: {card.keeps}. Our extension: {card.extension}.

```text
{listing.text}
```
"""


def write(path: Path, count: Callable[[catalogue.Listing], Cost | None] = catalogue.count) -> None:
    """Counts all solvers and writes the page."""
    path.write_text(page({listing.name: cells(count(listing)) for listing in catalogue.listings()}))


if __name__ == "__main__":
    write(PAGE)
