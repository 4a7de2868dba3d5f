"""Runs `bl.solve` with nothing given on every family, and writes one JSON line a run.

    python -m benchmarks.convergence.run --out results.jsonl
    python -m benchmarks.convergence.run --families ridge logistic --draws 5 --steps 2000 --batches 3000
    python -m benchmarks.convergence.run --solver Tandem --steps --batches 3000 --out tandem.jsonl
    PYTHONPATH=/tmp/before/src python -m benchmarks.convergence.run --out before.jsonl      # another version

From the root of the repository, in float64. Lines that the file has are not run again, so that it can be stopped and
started; what a run raises is written down. A run is judged by `exact_losses` at its x, not by what it reports.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree

jax.config.update("jax_enable_x64", True)  # before any array is made

from benchmarks.convergence.families import FAMILIES, PAPER, Case  # noqa: E402
from benchmarks.convergence.reference import Reference, exact_losses, from_start, reference  # noqa: E402

import bilevel as bl  # noqa: E402

CACHE = Path(tempfile.gettempdir()) / "bilevel-references"
KEY = ("family", "draw", "steps", "batches")


def worst_at(case: Case, x: Any) -> float:
    """The worst loss at x, lower problems solved."""
    return float(np.max(exact_losses(case, x)))


def error(reported: float, true: float) -> float:
    """|reported - true| / |true|."""
    return abs(reported - true) / abs(true)


def history_errors(case: Case, history: Any, seen: dict[int, Any]) -> dict[str, Any]:
    """The largest error of the worst losses in the history: of all rows, and of those whose y was fitted."""
    fitted = getattr(history, "fitted", None)
    errors = {
        k: error(float(history.worst[k]), worst_at(case, seen[int(step)]))
        for k, step in enumerate(history.step)
        if int(step) in seen
    }
    told = [] if fitted is None else [errors[k] for k in errors if fitted[k]]
    return {
        "fitted_rows": len(told),
        "fitted_error": largest(told),
    }


def largest(errors: Any) -> float | None:
    """The largest number; one that is not finite is the largest."""
    errors = list(errors)
    return None if not errors else math.inf if not np.all(np.isfinite(errors)) else float(max(errors))


def is_solution(case: Case, x: Any, worst: float) -> bool:
    """Whether the reference's own solvers gain less than 5 % when they start at x."""
    return from_start(case, np.asarray(ravel_pytree(x)[0])).best[0] > 0.95 * worst


def run(case: Case, problem: bl.Problem, given: bl.Solver | None, steps: int, reference: float) -> dict[str, Any]:
    """One run, and what is true of where it ended."""
    seen: dict[int, Any] = {0: case.x}  # the callback does not see the start

    def keep(evaluation: dict) -> None:
        seen[int(evaluation["step"])] = jax.tree.map(np.array, evaluation["x"])

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = bl.solve(problem, given, x=case.x, y=case.y, steps=steps, progress=False, callback=keep)
        true = worst_at(case, result.x)
        over = 1.05 * reference < true < math.inf
        solution = is_solution(case, result.x, true) if over else None
        gain = float(bl.certify(case.problem, result).gain) if over else None
    return {
        "status": result.status,
        "taken": int(result.steps),
        "run_seconds": result.seconds - result.compile_seconds,
        "worst": result.worst,
        "best": result.best.worst,
        "true_worst": true,
        "true_best": worst_at(case, result.best.x),
        "solution": solution,  # None: it is not over the reference
        "gain": gain,  # of a descent from x, by `certify`; likewise
        **history_errors(case, result.history, seen),
    }


def record(case: Case, known: Reference, given: bl.Solver | None, steps: int, batches: bool) -> dict[str, Any]:
    """The line of one run."""
    line = {"family": case.family, "draw": case.draw, "steps": steps, "batches": batches}
    line |= {f"reference_{name}": getattr(known, name) for name in ("start", "same", "others")}
    try:
        return line | run(case, case.batched if batches else case.problem, given, steps, known.same)
    except Exception as failure:  # whatever a run raises is a finding
        said = f"{type(failure).__name__}: {failure}".splitlines()[0]
        traceback.print_exc()
        return line | {"status": "raised", "error": said}


def finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def shown(line: dict[str, Any]) -> str:
    """A line to follow the runs by."""
    head = f"{line['family']:10} {line['draw']:3} {line['steps']:7}{' batches' if line['batches'] else '':8}"
    if "error" in line:
        return f"{head} raised {line['error'][:90]}"
    true = line["true_worst"]
    ratio = "not finite" if true is None else f"{true / line['reference_same']:.4f}"
    return (
        f"{head} true worst / reference {ratio}  {line['status']}, {line['taken']} steps, {line['run_seconds']:.1f} s"
    )


def main() -> None:
    """The command."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--families", nargs="*", default=list(FAMILIES), choices=[*FAMILIES, "paper"])
    parse.add_argument("--solver", help="a solver of bilevel, without options; not given = nothing given")
    parse.add_argument("--draws", type=int, default=20)
    parse.add_argument("--first", type=int, default=0, help="the first draw")
    parse.add_argument("--steps", nargs="*", type=int, default=[2000, 20_000, 200_000], help="with all the data")
    parse.add_argument("--batches", nargs="*", type=int, default=[3000, 30_000], help="steps of runs with batches")
    parse.add_argument("--out", type=Path, default=Path("results.jsonl"))
    parse.add_argument("--cache", type=Path, default=CACHE, help="the folder of the references")
    parse.add_argument("--minutes", type=float, default=math.inf, help="begin no run after these")
    given = parse.parse_args()
    solver = getattr(bl, given.solver)() if given.solver else None
    names = [name for family in given.families for name in (PAPER if family == "paper" else (family,))]
    print(f"bilevel from {bl.__file__}, references in {given.cache}", flush=True)
    done = set()
    if given.out.exists():
        done = {tuple(json.loads(line)[part] for part in KEY) for line in given.out.read_text().splitlines()}
    until = time.monotonic() + 60 * given.minutes
    for draw in range(given.first, given.first + given.draws):
        for name in names:
            wanted = [(name, draw, steps, False) for steps in given.steps]
            wanted += [(name, draw, steps, True) for steps in given.batches]
            wanted = [key for key in wanted if key not in done]
            if not wanted or time.monotonic() > until:
                continue
            case = FAMILIES[name](draw)
            known = reference(case, given.cache)
            for *_, steps, batches in wanted:
                if (batches and case.batched is None) or time.monotonic() > until:
                    continue
                line = {part: finite(value) for part, value in record(case, known, solver, steps, batches).items()}
                with given.out.open("a") as file:
                    file.write(json.dumps(line) + "\n")
                print(shown(line), flush=True)


if __name__ == "__main__":
    main()
