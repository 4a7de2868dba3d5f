"""Where the runs of a command are made: here, as tasks of Ray, or as jobs of Slurm, for which a script is printed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

Ray = Annotated[
    bool, typer.Option("--ray", help="Make the runs as tasks of Ray, on the cluster of RAY_ADDRESS or on this machine.")
]
SlurmArray = Annotated[
    bool, typer.Option("--slurm-array", help="Print a script for sbatch, one job a solver, and run nothing.")
]


@contextmanager
def engine(ray: bool) -> Iterator[None]:
    """A scope in which runs are made there."""
    if not ray:
        yield
        return
    from bilevel.engines.ray import tasks

    with tasks():
        yield


def slurm_array(problem: str, jobs: Sequence[Sequence[str]], everything: Sequence[str], out: Path) -> str:
    """A script for sbatch: each job makes the runs of one solver, and the last command the table of all.

    Args:
        problem: its name.
        jobs: the options of each job.
        everything: those of the last command.
        out: the folder.
    """

    def command(options: Sequence[str]) -> str:
        return shlex.join(["bilevel", "compare", problem, *options, "--quiet", "--out", str(out)])

    cases = "\n".join(f"{number}) exec {command(own)} ;;" for number, own in enumerate(jobs))
    return f"""\
#!/bin/sh
# sbatch this; the folder must be one that all nodes see. When all jobs have ended, the table of all is made by
#     {command(everything)}
# which finds their runs finished. A job that was killed goes on where it was when it is submitted again.
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
