"""`bilevel reproduce`: every figure of the paper from one command."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bilevel._core import values
from bilevel._studies.experiment import SEEDS, VARIANTS, Experiment
from bilevel._studies.record_files import RecordFiles
from bilevel._studies.running import Stage, run
from bilevel.paper.figures import FIGURES, draw

QUICK_SHARE, QUICK_SEEDS = 50, 2  # a fiftieth of the steps and two trials: to see that all of it runs
Say = Callable[[str], None]


def shortened(quick: bool) -> Callable[[Experiment], Experiment]:
    """How experiments are made shorter."""
    return (lambda experiment: experiment.shorter(QUICK_SHARE)) if quick else (lambda experiment: experiment)


def reproduce(
    figures: Sequence[str] = (),
    variants: Sequence[str] = (),
    seeds: int = SEEDS,
    quick: bool = False,
    out: Path = Path("reproduction"),
    progress: bool = True,
    say: Say = print,
) -> list[Path]:
    """Makes the runs of the figures that are missing, and draws them.

    Args:
        figures: their names, such as "1a"; none = all.
        variants: "described", "published", "ours"; none = all.
        seeds: trials of each.
        quick: a fiftieth of the steps: to see that it works, not what comes out.
        out: the folder of runs, figures and their numbers. Runs that are finished there are not made again.
        progress: show progress bars where there is a terminal.
        say: called with a line of text for each thing done.

    Returns:
        The files of the figures.
    """
    _check(figures, variants, seeds, out)
    chosen = [FIGURES[name] for name in figures or FIGURES]
    shorter = shortened(quick)
    experiments = list({e.name: e for figure in chosen for e in figure.experiments}.values())
    for experiment in experiments:
        experiment.require()
    records, files = RecordFiles(out), []
    out.mkdir(parents=True, exist_ok=True)
    for variant in variants or VARIANTS:
        began = time.perf_counter()
        for number, experiment in enumerate(map(shorter, experiments), 1):
            said = _run(experiment, variant, range(seeds), records, progress)
            say(f"{variant} {number}/{len(experiments)}, {experiment.title}: {said}")
        # Drawn after each variant, so that the first figures are there early.
        files = [file for figure in chosen for file in draw(figure, records, shorter)]
        say(f"{variant}: {clock(time.perf_counter() - began)}")
    return files


def _check(figures: Sequence[str], variants: Sequence[str], seeds: int, out: Path) -> None:
    for kind, names, known in (("figures", figures, FIGURES), ("variants", variants, VARIANTS)):
        for name in names:
            if name not in known:
                raise ValueError(f"reproduce({kind}=...) got {name!r}: there are {', '.join(known)}.")
    values.whole("seeds", seeds, of="reproduce")
    if out.is_file():
        raise NotADirectoryError(f"reproduce(out={str(out)!r}): it is a file, and it needs a folder.")


def _run(experiment: Experiment, variant: str, seeds: range, records: RecordFiles, progress: bool) -> str:
    """Makes the missing runs of one experiment, and says what was done."""
    ran = run(Stage(experiment, variant), seeds, records, progress)
    if not ran.runs:
        return "all runs were there"
    records.note_time(experiment.name, variant, ran.runs, ran.seconds, ran.diverged)
    return f"{ran.runs} runs in {clock(ran.seconds)}" + (f", {ran.diverged} diverged" if ran.diverged else "")


def clock(seconds: float) -> str:
    """Minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"
