"""Writes docs/solvers.md from what the solvers say of themselves and what their steps are counted to cost.

python docs/make_solvers.py        # about a minute: steps of every solver are run
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from bilevel._cost import catalogue
from bilevel._cost.report import KINDS, Cost

PAGE = Path(__file__).with_name("solvers.md")

INTRODUCTION = """# Solvers

Written by `python docs/make_solvers.py`; do not edit. `bilevel solvers --cost` shows the same on the command line.

Rates are numbers of samples until the squared gradient norm is below eps, as published for one task. "Our extension"
goes beyond the paper, without a theorem. "Keeps" is what a run holds besides x, y and the weights, for n tasks.
"""

COSTS = f"""## What a step costs

Calls per step and task, counted by `bl.cost` on {catalogue.STEPS} steps of every solver as it comes, at given rates (an
automatic lower rate adds one A v). A call is one evaluation on one batch; A = d2g/dy2 and J = d2g/dxdy. A value that
comes with a gradient, and a gradient on the way to a product, are free; f_x and f_y are one call where one pass gives
both, otherwise two. Numbers with a fraction are averages: those methods refresh now and then, or their loops grow.
Methods that build matrices (STABLE) make one product per number in y, here {catalogue.Y_SIZE}.
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
    entries = catalogue.entries()
    said = [
        (f"`{e.name}`", e.card.problem, e.card.loops, e.card.constraint, e.card.rate, e.card.paper) for e in entries
    ]
    numbers = [(f"`{e.name}`", *costs.get(e.name, cells(None))) for e in entries]
    parts = [
        INTRODUCTION,
        _table(("solver", "problem", "loops", "constraint", "published rate", "paper"), said),
        COSTS,
        _table(("solver", *KINDS, "total"), numbers),
        "## One by one\n",
        *map(_section, entries),
    ]
    return "\n".join(parts)


def _table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    titles = list(titles)
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _section(entry: catalogue.Entry) -> str:
    card = entry.card
    return f"""### {entry.name}

Keeps: {card.keeps}. Our extension: {card.extension}.

```text
{entry.text}
```
"""


if __name__ == "__main__":
    PAGE.write_text(page({entry.name: cells(catalogue.count(entry)) for entry in catalogue.entries()}))
