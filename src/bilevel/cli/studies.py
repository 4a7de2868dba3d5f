"""`bilevel demo`, `solvers` and `compare`; `bilevel reproduce` and `claims` for the figures of the MORBiT paper."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bilevel.cli.app import INTERRUPTED, Debug, Quiet, app, errors, interrupts, understood
from bilevel.cli.runs import resumable

if TYPE_CHECKING:
    from rich.table import Table

    from bilevel import Cost
    from bilevel.studies.catalogue import Listing

Ray = Annotated[
    bool, typer.Option("--ray", help="Make the runs as tasks of Ray, on the cluster of RAY_ADDRESS or on this machine.")
]


def _check_figure(path: Path) -> None:
    from bilevel.results.plots import check_path

    check_path(path, "{!r}")


@app.command()
def demo(
    steps: Annotated[int, typer.Option(min=1, help="Steps of each run.")] = 1000,
    draws: Annotated[int, typer.Option(min=1, help="How many sets of tasks to draw.")] = 5,
    tasks: Annotated[int, typer.Option(min=1, help="Tasks in each set.")] = 16,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Save a figure here: .png, .pdf or .svg.", callback=understood(_check_figure)
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare min-avg with min-max: hyperparameters shared by pairs of letters.

    Each task distinguishes two letters, with data from the package. All tasks share the hyperparameters of their
    models. min-avg chooses these for the average task, min-max for the worst one; the table shows what either gains and
    loses. Ctrl-C ends early and shows partial results.
    """
    from bilevel._run.compiling import compile_cache
    from bilevel.studies.paper.commands import run_demo as run

    with compile_cache(), interrupts() as interrupted, errors(debug):
        text = run(steps=steps, draws=draws, tasks=tasks, out=out, seed=seed, progress=not quiet)
    typer.echo(text)
    if out is not None:
        typer.echo(f"\nThe figure is in {out}.")
    if interrupted.is_set():
        typer.echo("Interrupted: the runs ended early, some before others, and are no fair comparison.", err=True)
        raise typer.Exit(INTERRUPTED)


# ------------------------------------------------------------------ solvers


def _check_solver(name: str) -> None:
    from bilevel.studies.catalogue import find

    find(name)


@app.command()
def solvers(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Show this one in full.", callback=understood(_check_solver))
    ] = None,
    cost: Annotated[
        bool, typer.Option("--cost", help="Count what a step costs, by running some: about 2 seconds a solver.")
    ] = False,
) -> None:
    """List the solvers: what each one solves, keeps and costs, its published rate, its paper, and what we added."""
    from rich.console import Console

    from bilevel.studies.catalogue import find, listings

    if name is None:
        Console().print(_solver_table(listings(), cost))
    else:
        typer.echo(_solver_page(find(name), cost))


def _solver_table(listings: Sequence[Listing], with_cost: bool) -> Table:
    """A row for each solver; some columns hold several things, or the table would not fit a terminal."""
    from rich.table import Table
    from rich.text import Text

    from bilevel.studies.catalogue import count

    table = Table(show_lines=True)
    table.add_column("solver", no_wrap=True)
    for title in ("problem, loop, constraint", "keeps besides x, y, weights", "published rate, paper", "our extension"):
        table.add_column(title)
    if with_cost:
        table.add_column("cost", no_wrap=True)
    for listing in listings:
        card = listing.card
        row = [listing.name, f"{card.problem}\n{card.loops} loop\n{card.constraint}", card.keeps]
        row += [f"{card.rate}\n{card.paper}", card.extension]
        table.add_row(*map(Text, [*row, "\n".join(_calls(count(listing)))] if with_cost else row))
    table.caption = (
        "Rates: samples until the squared gradient norm is below eps, as published for one task.\n"
        + ("Cost: calls per step and task, at given rates.\n" if with_cost else "`--cost` counts what a step costs. ")
        + "`bilevel solvers NAME` shows one in full."
    )
    return table


def _solver_page(listing: Listing, with_cost: bool) -> str:
    """One solver in full: its module's text, its card and its options."""
    from bilevel.studies.catalogue import count

    fields = ("problem", "loops", "constraint", "keeps", "rate", "paper", "extension")
    said = {field: getattr(listing.card, field) for field in fields} | {"options": listing.options}
    if with_cost:
        said["cost"] = f"{', '.join(_calls(count(listing)))} (per step and task, at given rates)"
    return "\n".join([listing.text, "", *(f"{field:<12}{value}" for field, value in said.items())])


def _calls(cost: Cost | None) -> list[str]:
    return ["-"] if cost is None else cost.calls


# ------------------------------------------------------------------ compare


def _check_problems(names: list[str]) -> None:
    from bilevel.studies.comparison.benchmarks import benchmark

    for name in names:
        benchmark(name)


def _check_solvers(names: list[str]) -> None:
    for name in names:
        if name != "paper":
            _check_solver(name)


@app.command()
def compare(
    problems: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PROBLEM",
            help="ball, noisy-ball, sinusoids, letter, fashion; none = all.",
            callback=understood(_check_problems),
        ),
    ] = None,
    solver: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="May be repeated; `paper` is MORBiT as in the paper; none = all that can run.",
            callback=understood(_check_solvers),
        ),
    ] = None,
    calls: Annotated[float | None, typer.Option(help="Budget in oracle calls per task.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Budget in seconds of steps instead.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each solver.")] = 10,
    automatic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Runs with automatic rates too; may be repeated; none = the one recommended."
        ),
    ] = None,
    target: Annotated[float | None, typer.Option(help="Count calls and seconds to this worst validation loss.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of runs, tables and figures.")] = Path("comparison"),
    ray: Ray = False,
    slurm_array: Annotated[
        bool, typer.Option("--slurm-array", help="Print a script for sbatch, one job a solver, and run nothing.")
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Compare solvers on a problem: equal budgets, rates tuned on one grid, several seeds.

    If the problem has selection rows, which x never sees (letter, fashion), they tune rates and rank solvers. Otherwise
    validation rows tune rates, and test rows, if there are any, rank solvers.

    Every solver runs as a min-max method, also those that average the tasks as published. An oracle call is one value,
    gradient or product of one task on one row. Finished runs in DIR are not made again, and unfinished ones are saved:
    after Ctrl-C or a crash, the same command continues, and so does `bilevel resume DIR`.
    """
    from bilevel.studies.comparison.benchmarks import BENCHMARKS
    from bilevel.studies.comparison.comparing import compare as run

    names = problems or list(BENCHMARKS)
    numbers = {"seeds": seeds, "calls": calls, "seconds": seconds, "target": target}
    if slurm_array:
        typer.echo("\n".join(_slurm_script(name, solver or [], automatic or [], numbers, out) for name in names))
        return
    chosen = {"problems": problems, "solver": solver, "automatic": automatic}
    options = {"solvers": solver or None, "automatic": automatic or None, "progress": not quiet, "say": typer.echo}
    with resumable(out, "compare", chosen | numbers, ray, debug):
        for name in names:
            found = run(name, out=out, **numbers, **options)
            typer.echo(f"\n{found.summary()}\n\n{out / name / 'comparison.png'}\n")


def _slurm_script(
    problem: str, solvers: list[str], automatic: list[str], numbers: dict[str, float | None], out: Path
) -> str:
    """A script for sbatch: each job makes the runs of one solver; the last command makes the table of all."""
    from bilevel.studies.comparison.benchmarks import all_solvers

    options = [text for name, number in numbers.items() if number is not None for text in (f"--{name}", str(number))]

    def command(solvers: list[str]) -> str:
        own = [name for name in automatic if name in solvers] if solvers else automatic
        named = [*(f"--solver={name}" for name in solvers), *(f"--automatic={name}" for name in own)]
        return shlex.join(["bilevel", "compare", problem, *options, *named, "--quiet", "--out", str(out)])

    jobs = [command([name]) for name in solvers or all_solvers()]
    cases = "\n".join(f"{number}) exec {job} ;;" for number, job in enumerate(jobs))
    return f"""\
#!/bin/sh
# Submit this with sbatch; all nodes must see the folder. When all jobs have ended, make the table of all with
#     {command(solvers)}
# which finds their runs finished. A job that was killed continues where it was when it is submitted again.
#SBATCH --job-name=bilevel-{problem}
#SBATCH --array=0-{len(jobs) - 1}
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=2
#SBATCH --requeue
set -eu
case "$SLURM_ARRAY_TASK_ID" in
{cases}
esac
"""


# ------------------------------------------------------------------ the paper


def _known(kind: str, names: Sequence[str]) -> Callable[[Sequence[str]], None]:
    """A check that raises for a name that is not among these, and suggests the nearest."""

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
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Two trials, a fiftieth of the steps: a test that everything runs, not a reproduction."
        ),
    ] = False,
    hours: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="If a claim is inconclusive, go on to 20, 40 and 80 trials, while that ends within this many hours; "
            "none = do not.",
        ),
    ] = None,
    out: _Out = None,
    ray: Ray = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make the figures of the MORBiT paper, with their numbers as CSV.

    Each figure comes in up to four variants: as the paper *described* its method, as in the scripts that it
    *published*, the same with other values of what is not known (*published-other*), and *ours*, with a true
    hypergradient. The command says how long it will take before it starts. Finished runs are not made again, and
    unfinished ones are saved: after Ctrl-C or a crash, the same command continues, and so does `bilevel resume DIR`.
    `bilevel claims` then tests what the paper says. Figures 1a and 1b need FashionMNIST, which is downloaded unless it
    is on this machine.
    """
    from bilevel.studies.paper.commands import QUICK_SEEDS
    from bilevel.studies.paper.commands import reproduce as run
    from bilevel.studies.records import SEEDS

    trials = seeds or (QUICK_SEEDS if quick else SEEDS)
    chosen = variant or (_VARIANTS[:1] if quick else _VARIANTS)
    folder = _folder(out, quick)
    given = {"figures": figures, "seeds": seeds, "variant": variant, "quick": quick, "hours": hours}
    with resumable(folder, "reproduce", given, ray, debug):
        files = run(figures or (), chosen, trials, quick, folder, not quiet, typer.echo, hours)
    typer.echo("\n".join(["", *map(str, files)]))


@app.command()
def claims(
    out: _Out = None,
    quick: Annotated[bool, typer.Option("--quick", help="Test the runs of `reproduce --quick`.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table for a page.")] = False,
    debug: Debug = False,
) -> None:
    """Test each claim of the MORBiT paper on the runs of `bilevel reproduce`, by intervals over the trials.

    A claim holds if the whole interval agrees with it. It does not hold if a relevant gain is excluded. Otherwise it is
    inconclusive; docs/paper.md has the rule.
    """
    from rich.console import Console
    from rich.table import Table

    from bilevel.studies.paper import claims as tested
    from bilevel.studies.paper.commands import shortened
    from bilevel.studies.records import RecordFiles

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
