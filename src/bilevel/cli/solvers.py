"""`bilevel solvers`: the list, and each in full."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from bilevel.cli.app import app, understood

if TYPE_CHECKING:
    from rich.table import Table

    from bilevel._cost.catalogue import Listing
    from bilevel._cost.report import Cost


def check_solver(name: str) -> None:
    """Raises for a name that is not a solver's."""
    from bilevel._cost.catalogue import find

    find(name)


@app.command()
def solvers(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this one in full.", callback=understood(check_solver))
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Count what a step costs, by running some: about 2 seconds a solver.")
    ] = False,
) -> None:
    """List the solvers: what each one solves, keeps and costs, its published rate, its paper, and what we added."""
    from rich.console import Console

    from bilevel._cost.catalogue import find, listings

    if name is None:
        Console().print(_solver_table(listings(), cost))
    else:
        typer.echo(_solver_page(find(name), cost))


def _solver_table(listings: Sequence[Listing], with_cost: bool) -> Table:
    """A row for each solver; some columns hold several things, or the table would not fit a terminal."""
    from rich.table import Table
    from rich.text import Text

    from bilevel._cost.catalogue import count

    table = Table(show_lines=True)
    table.add_column("solver", no_wrap=True)
    for title in (
        "problem, loop, constraint",
        "keeps besides x, y, weights",
        "published rate, paper",
        "our extension",
    ):
        table.add_column(title)
    if with_cost:
        table.add_column("cost", no_wrap=True)
    for listing in listings:
        card = listing.card
        row = [
            listing.name,
            f"{card.problem}\n{card.loops} loop\n{card.constraint}",
            card.keeps,
            f"{card.rate}\n{card.paper}",
            card.extension,
        ]
        table.add_row(*map(Text, [*row, "\n".join(_calls(count(listing)))] if with_cost else row))
    table.caption = (
        "Rates: samples until the squared gradient norm is below eps, as published for one task.\n"
        + ("Cost: calls per step and task, at given rates.\n" if with_cost else "`--cost` counts what a step costs. ")
        + "`bilevel solvers NAME` shows one in full."
    )
    return table


def _solver_page(listing: Listing, with_cost: bool) -> str:
    """One solver in full: its module's text, its card and its options."""
    from bilevel._cost.catalogue import count

    card = listing.card
    said = {"problem": card.problem, "loops": card.loops, "constraint": card.constraint, "keeps": card.keeps}
    said |= {"rate": card.rate, "paper": card.paper, "extension": card.extension}
    said["options"] = listing.options
    if with_cost:
        said["cost"] = f"{', '.join(_calls(count(listing)))} (per step and task, at given rates)"
    return "\n".join([listing.text, "", *(f"{field:<12}{value}" for field, value in said.items())])


def _calls(cost: Cost | None) -> list[str]:
    return ["-"] if cost is None else cost.calls
