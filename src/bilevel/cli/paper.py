"""`bilevel reproduce` and `bilevel claims`: the figures of the MORBiT paper, and its claims about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from bilevel.cli.app import app, errors, understood
from bilevel.cli.engines import Ray, engine
from bilevel.cli.resume import kept, remembered


def _known(kind: str, names: Sequence[str]) -> Callable[[Sequence[str]], None]:
    """Raises for a name that is not among these, and suggests the nearest."""

    def check(values: Sequence[str]) -> None:
        from bilevel._core.values import suggestion

        for value in values:
            if value not in names:
                said = f"there is no {kind} {value!r}: there are {', '.join(names)}. {suggestion(value, names)}"
                raise ValueError(said.rstrip())

    return check


_FIGURES = ("1a", "1b", "1c", "1c-drawn", "C.1", "C.1-drawn", "C.1-script", "2a", "2b", "2c")
_VARIANTS = ("described", "published", "published-other", "ours")
_Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of runs and figures; ./reproduction, or ./reproduction-quick if quick."),
]
_Quick = Annotated[
    bool,
    typer.Option(
        "--quick", help="Two trials, a fiftieth of the steps: a test that everything runs, not a reproduction."
    ),
]


def _folder(out: Path | None, quick: bool) -> Path:
    return out or Path("reproduction-quick" if quick else "reproduction")


@app.command()
def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIGURE",
            help=f"{', '.join(_FIGURES)}; none = all.",
            callback=understood(_known("figure", _FIGURES)),
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Trials of each; 10, or 2 if quick.")] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(_VARIANTS)}; may be repeated; none = all, or the first if quick.",
            callback=understood(_known("variant", _VARIANTS)),
        ),
    ] = None,
    quick: _Quick = False,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Go on to 20, 40 and 80 trials where a claim is inconclusive, while that ends within so many hours; "
            "none = not.",
        ),
    ] = None,
    out: _Out = None,
    ray: Ray = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Make the figures of the MORBiT paper, with their numbers as CSV.

    Each comes in up to four variants: as the paper *described* its method, as in the scripts that it *published*, the
    same with other values of what is not known (*published-other*), and *ours*, with a true hypergradient. It says
    how long it will take before it starts. Runs that are finished are not made again, and those under way are kept:
    after Ctrl-C, or a crash, the same command continues, and so does `bilevel resume DIR`. `bilevel claims` then tests
    what the paper says. Figures 1a and 1b need FashionMNIST, which is looked for on this machine and otherwise
    downloaded.
    """
    from bilevel._run.compile_cache import compile_cache
    from bilevel._studies.records import SEEDS
    from bilevel.paper.commands import QUICK_SEEDS
    from bilevel.paper.commands import reproduce as run

    trials = seeds or (QUICK_SEEDS if quick else SEEDS)
    chosen = variant or (_VARIANTS[:1] if quick else _VARIANTS)
    folder = _folder(out, quick)
    given = {"figures": figures, "seeds": seeds, "variant": variant, "quick": quick, "hours": hours}
    with compile_cache(), errors(debug, kept(folder)), remembered(folder, "reproduce", given), engine(ray):
        files = run(figures or (), chosen, trials, quick, folder, not quiet, typer.echo, hours)
    typer.echo("\n".join(["", *(str(file) for file in files)]))


@app.command()
def claims(
    out: _Out = None,
    quick: Annotated[bool, typer.Option("--quick", help="Test the runs of `reproduce --quick`.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table for a page.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Test each claim of the MORBiT paper on the runs of `bilevel reproduce`, by intervals over the trials.

    A claim holds if all of the interval agrees with it, does not hold if a gain worth speaking of is excluded, and is
    otherwise inconclusive; docs/paper.md has the rule.
    """
    from rich.console import Console
    from rich.table import Table

    from bilevel._studies.records import RecordFiles
    from bilevel.paper import claims as tested
    from bilevel.paper.commands import shortened

    folder = _folder(out, quick)
    with errors(debug):
        found = tested.evaluate_claims(RecordFiles(folder), shortened(quick))
        rows = tested.table(found)
        if not rows:
            made = "bilevel reproduce --quick" if quick else "bilevel reproduce"
            other = "" if quick else " (of its quick runs: `bilevel claims --quick`)"
            raise ValueError(f"there are no finished runs in {str(folder)!r}: `{made}` makes them{other}.")
    if markdown:
        typer.echo(tested.markdown(found))
        return
    table = Table(*tested.HEAD, show_lines=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if quick:
        typer.echo("These are quick runs, a fiftieth as long: they show that it works, and nothing about the claims.")
