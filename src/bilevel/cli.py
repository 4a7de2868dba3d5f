"""The command `bilevel`: parses, calls the library, prints.

Exit codes: 0 all went well, 1 the run failed, 2 the command was not understood, 130 Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

if TYPE_CHECKING:
    from rich.table import Table

    from bilevel.catalogue import Entry
    from bilevel.cost import Cost

INTERRUPTED = 130  # 128 + SIGINT, as shells have it

app = typer.Typer(
    name="bilevel",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """The console script."""
    app(prog_name="bilevel")


def _version(wanted: bool) -> None:
    if wanted:
        from bilevel import __version__

        typer.echo(f"bilevel {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Min-max multi-objective bilevel optimization: learn what tasks share so that the worst of them does well.

    Start with `bilevel demo`. Everything else is the Python library: `import bilevel as bl`.
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


# ------------------------------------------------------------------ solvers


def _known_solver(name: str | None) -> str | None:
    """Refuses a name that no solver has."""
    if name is not None:
        from bilevel.catalogue import find

        try:
            find(name)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return name


@app.command()
def solvers(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this one in full.", callback=_known_solver)
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Count what a step costs, by running some: about 2 seconds a solver.")
    ] = False,
) -> None:
    """List the solvers: what each one solves, keeps and costs, its published rate, its paper, and what we added."""
    from rich.console import Console

    from bilevel.catalogue import entries, find

    if name is None:
        Console().print(_solver_table(entries(), cost))
    else:
        typer.echo(_solver_page(find(name), cost))


def _solver_table(entries: Sequence[Entry], with_cost: bool) -> Table:
    """A row a solver; like things share a column, or it would not fit a terminal."""
    from rich.table import Table
    from rich.text import Text

    from bilevel.catalogue import count

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
    for entry in entries:
        card = entry.card
        row = [
            entry.name,
            f"{card.problem}\n{card.loops} loop\n{card.constraint}",
            card.keeps,
            f"{card.rate}\n{card.paper}",
            card.extension,
        ]
        table.add_row(*map(Text, [*row, "\n".join(_calls(count(entry)))] if with_cost else row))
    table.caption = (
        "Rates: samples until the squared gradient norm is below eps, as published for one task.\n"
        + ("Cost: calls per step and task, at given rates.\n" if with_cost else "`--cost` counts what a step costs. ")
        + "`bilevel solvers NAME` shows one in full."
    )
    return table


def _solver_page(entry: Entry, with_cost: bool) -> str:
    """All that there is to say of one solver."""
    from bilevel.catalogue import count

    card = entry.card
    said = {"problem": card.problem, "loops": card.loops, "constraint": card.constraint, "keeps": card.keeps}
    said |= {"rate": card.rate, "paper": card.paper, "extension": card.extension}
    said["options"] = entry.options
    if with_cost:
        said["cost"] = f"{', '.join(_calls(count(entry)))} (per step and task, at given rates)"
    return "\n".join([entry.text, "", *(f"{field:<12}{value}" for field, value in said.items())])


def _calls(cost: Cost | None) -> list[str]:
    return ["-"] if cost is None else cost.calls


# ------------------------------------------------------------------ demo


def _default(name: str) -> Callable[[], int]:
    """A default of the demo, looked up when it is needed."""

    def look_up() -> int:
        from bilevel.demo import DEFAULTS

        return getattr(DEFAULTS, name)

    return look_up


class _ShowsDefaults(TyperCommand):
    """A command whose help shows the defaults that are looked up when needed."""

    def format_help(self, *arguments: Any) -> None:
        for option in self.params:
            if callable(option.default):
                option.default = option.default()
        super().format_help(*arguments)


def _writable(path: Path | None) -> Path | None:
    """Refuses a figure that could not be saved, before the long run."""
    if path is not None:
        from bilevel.plotting import check_path

        try:
            check_path(path, "{!r}")
        except (ValueError, OSError) as error:
            raise typer.BadParameter(str(error)) from error
    return path


@app.command(cls=_ShowsDefaults)
def demo(
    steps: Annotated[int, typer.Option(min=1, help="Steps of each run.", default_factory=_default("steps"))],
    draws: Annotated[
        int, typer.Option(min=1, help="How many sets of tasks to draw.", default_factory=_default("draws"))
    ],
    tasks: Annotated[int, typer.Option(min=1, help="Tasks in each set.", default_factory=_default("tasks"))],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Save a figure here: .png, .pdf or .svg.", callback=_writable),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compare min-avg with min-max: hyperparameters shared by pairs of letters.

    Each task tells one letter from another, with data that come with the package. All tasks share the hyperparameters
    of their models. min-avg chooses these for the average task, min-max for the worst one; the table shows what either
    gains and loses. Ctrl-C ends early and shows what there is.
    """
    from bilevel.cache import keep_compiled
    from bilevel.demo import run

    keep_compiled()
    with _interrupts() as interrupted, _errors(debug):
        text = run(steps=steps, draws=draws, tasks=tasks, out=out, seed=seed, progress=not quiet)
    typer.echo(text)
    if out is not None:
        typer.echo(f"\nThe figure is in {out}.")
    if interrupted.is_set():
        typer.echo("Interrupted: the runs ended early, some before others, and are no fair comparison.", err=True)
        raise typer.Exit(INTERRUPTED)


# ------------------------------------------------------------------ the paper


def _known(kind: str, names: Sequence[str]) -> Callable[[list[str] | None], list[str]]:
    """A callback that refuses names that are not among these, and suggests the nearest."""

    def check(values: list[str] | None) -> list[str]:
        from difflib import get_close_matches

        for value in values or []:
            if value not in names:
                near = get_close_matches(value, names, 1, 0.3)
                said = f" Did you mean {near[0]}?" if near else ""
                raise typer.BadParameter(f"there is no {kind} {value!r}: there are {', '.join(names)}.{said}")
        return list(values or [])

    return check


_FIGURES = ("1a", "1b", "1c", "C.1", "2a", "2b", "2c")
_VARIANTS = ("described", "published", "ours")
_Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of runs and figures; ./reproduction, or ./reproduction-quick if quick."),
]
_Quick = Annotated[
    bool,
    typer.Option("--quick", help="Two trials, a fiftieth of the steps: shows that it runs, not what comes out."),
]


def _folder(out: Path | None, quick: bool) -> Path:
    return out or Path("reproduction-quick" if quick else "reproduction")


@app.command()
def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FIGURE", help=f"{', '.join(_FIGURES)}; none = all.", callback=_known("figure", _FIGURES)
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Trials of each; 10, or 2 if quick.")] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(_VARIANTS)}; may be repeated; none = all, or the first if quick.",
            callback=_known("variant", _VARIANTS),
        ),
    ] = None,
    quick: _Quick = False,
    out: _Out = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Make the figures of the MORBiT paper, with their numbers as CSV.

    Each comes in three variants: as the paper *described* its method, as the scripts that it *published* have it, and
    *ours*, with a true hypergradient. Runs that are finished are not made again: after Ctrl-C, or a crash, the same
    command goes on. `bilevel claims` then tests what the paper says. Figures 1a and 1b need FashionMNIST, which is
    looked for on this machine and otherwise downloaded.
    """
    from bilevel.cache import keep_compiled
    from bilevel.experiments.experiment import SEEDS
    from bilevel.experiments.reproduce import QUICK_SEEDS
    from bilevel.experiments.reproduce import reproduce as run

    keep_compiled()
    trials = seeds or (QUICK_SEEDS if quick else SEEDS)
    chosen = variant or (_VARIANTS[:1] if quick else _VARIANTS)
    with _errors(debug, "Interrupted: finished runs are kept, and the same command goes on from there."):
        files = run(figures or (), chosen, trials, quick, _folder(out, quick), not quiet, typer.echo)
    typer.echo("\n".join(["", *(str(file) for file in files)]))


@app.command()
def claims(
    out: _Out = None,
    quick: Annotated[bool, typer.Option("--quick", help="Of the runs that `reproduce --quick` made.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table for a page.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Test each claim of the MORBiT paper on the runs of `bilevel reproduce`: 95 % intervals over the trials.

    A claim holds if all of the interval agrees with it, does not hold if none of it does, and is otherwise
    inconclusive.
    """
    from rich.console import Console
    from rich.table import Table

    from bilevel.experiments import claims as tested
    from bilevel.experiments.records import Records
    from bilevel.experiments.reproduce import shortened

    folder = _folder(out, quick)
    with _errors(debug):
        found = tested.findings(Records(folder), shortened(quick))
        rows = tested.table(found)
        if not rows:
            made = "bilevel reproduce --quick" if quick else "bilevel reproduce"
            other = "" if quick else " (of its quick runs: `bilevel claims --quick`)"
            raise ValueError(f"there are no finished runs in {str(folder)!r}: `{made}` makes them{other}.")
    if markdown:
        typer.echo(tested.markdown(found))
        return
    table = Table("figure", "claim", "variant", "what we measured", "verdict", show_lines=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    if quick:
        typer.echo("These are quick runs, a fiftieth as long: they show that it works, and say nothing of the claims.")


# ------------------------------------------------------------------ compare


@app.command()
def compare(
    problems: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROBLEM", help="ball, noisy-ball, sinusoids, letter, fashion; none = all."),
    ] = None,
    solver: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="May be repeated; none = all that can run.")
    ] = None,
    calls: Annotated[float | None, typer.Option(help="Budget in oracle calls per task.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Budget in seconds of steps instead.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each solver.")] = 10,
    automatic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Runs with automatic rates too; may be repeated; none = Tandem."),
    ] = None,
    target: Annotated[float | None, typer.Option(help="Count calls and seconds to this worst validation loss.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of runs, tables and figures.")] = Path("comparison"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compare solvers on a problem: equal budgets, rates tuned on one grid by validation data, several seeds.

    Every solver runs as a min-max method, also those that average the tasks as published. An oracle call is one value,
    gradient or product of one task on one row. Runs that are finished in DIR are not made
    again: after Ctrl-C, or a crash, the same command goes on.
    """
    from bilevel.cache import keep_compiled
    from bilevel.comparison.compare import compare as run
    from bilevel.comparison.contests import CONTESTS, contest

    keep_compiled()
    kept = "Interrupted: finished runs are kept, and the same command goes on from there."
    with _errors(debug, kept):
        for name in [contest(name).name for name in problems or CONTESTS]:
            found = run(
                name,
                solvers=solver or None,
                calls=calls,
                seconds=seconds,
                seeds=seeds,
                automatic=automatic or None,
                target=target,
                out=out,
                progress=not quiet,
                say=typer.echo,
            )
            typer.echo(f"\n{found.summary()}\n\n{out / name / 'comparison.png'}\n")


# ------------------------------------------------------------------ what can go wrong


@contextmanager
def _errors(debug: bool, interrupted: str = "Interrupted.") -> Iterator[None]:
    """Says what the library refuses in one line, without a traceback unless that is wanted."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(interrupted, err=True)
        raise typer.Exit(INTERRUPTED) from None
    except (ValueError, TypeError, OSError) as error:
        if debug:
            raise
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(1) from None


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Remembers Ctrl-C: a run that is interrupted returns what there is, so that no exception tells of it."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # others get no signals
        yield pressed
        return

    def note(number: int, frame: Any) -> None:
        pressed.set()
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)
