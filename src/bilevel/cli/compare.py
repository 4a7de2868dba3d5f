"""`bilevel compare`: solvers on a problem, with equal budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bilevel.cli.app import app, errors, understood
from bilevel.cli.engines import Ray, SlurmArray, engine
from bilevel.cli.engines import slurm_array as slurm_script
from bilevel.cli.resume import kept, remembered
from bilevel.cli.solvers import check_solver


def _check_problems(names: list[str]) -> None:
    """Raises for a name that is not a benchmark's."""
    from bilevel.comparison.benchmarks import benchmark

    for name in names:
        benchmark(name)


def _check_solvers(names: list[str]) -> None:
    """Raises for a name that is not a solver's."""
    for name in names:
        if name != "paper":
            check_solver(name)


_Problems = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="PROBLEM",
        help="ball, noisy-ball, sinusoids, letter, fashion; none = all.",
        callback=understood(_check_problems),
    ),
]
_Solvers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="May be repeated; `paper` is MORBiT as in the paper; none = all that can run.",
        callback=understood(_check_solvers),
    ),
]
_Automatic = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Runs with automatic rates too; may be repeated; none = the one recommended."),
]


@app.command()
def compare(
    problems: _Problems = None,
    solver: _Solvers = None,
    calls: Annotated[float | None, typer.Option(help="Budget in oracle calls per task.")] = None,
    seconds: Annotated[float | None, typer.Option(help="Budget in seconds of steps instead.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each solver.")] = 10,
    automatic: _Automatic = None,
    target: Annotated[float | None, typer.Option(help="Count calls and seconds to this worst validation loss.")] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of runs, tables and figures.")] = Path("comparison"),
    ray: Ray = False,
    slurm_array: SlurmArray = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Compare solvers on a problem: equal budgets, rates tuned on one grid, several seeds.

    Rates are tuned and solvers ranked by selection rows, which x never sees, where the problem has any (letter,
    fashion). Elsewhere rates are tuned by validation rows and solvers ranked by test rows, if there are any.

    Every solver runs as a min-max method, also those that average the tasks as published. An oracle call is one value,
    gradient or product of one task on one row. Runs that are finished in DIR are not made again, and those under way
    are kept: after Ctrl-C, or a crash, the same command continues, and so does `bilevel resume DIR`.
    """
    from bilevel._run.compile_cache import compile_cache
    from bilevel.comparison.benchmarks import BENCHMARKS
    from bilevel.comparison.comparing import compare as run

    if slurm_array:
        numbers = {"seeds": seeds, "calls": calls, "seconds": seconds, "target": target}
        typer.echo(_script(problems or list(BENCHMARKS), solver or [], automatic or [], numbers, out))
        return
    chosen = {"problems": problems, "solver": solver, "automatic": automatic, "seeds": seeds}
    budget = {"calls": calls, "seconds": seconds, "target": target}
    with compile_cache(), errors(debug, kept(out)), remembered(out, "compare", chosen | budget), engine(ray):
        for name in problems or BENCHMARKS:
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


def _script(
    problems: list[str], solvers: list[str], automatic: list[str], numbers: dict[str, float | None], out: Path
) -> str:
    """What sbatch is given, problem by problem."""
    from bilevel.comparison.benchmarks import all_solvers

    options = [text for name, number in numbers.items() if number is not None for text in (f"--{name}", str(number))]

    def named(solvers: list[str]) -> list[str]:
        own = [name for name in automatic if name in solvers] if solvers else automatic
        return [*options, *(f"--solver={name}" for name in solvers), *(f"--automatic={name}" for name in own)]

    jobs = [named([name]) for name in solvers or all_solvers()]
    return "\n".join(slurm_script(name, jobs, named(solvers), out) for name in problems)
