"""README's example with other draws, in float32 as a user has it: how many runs end where they should.

    python -m benchmarks.convergence.readme_example --draws 100 --steps 2000

All runs come first, in float32; then x is judged in float64, against the reference from the same start.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from benchmarks.convergence.families import clinics, ridge, squared, squared_penalised

import bilevel as bl


def solved(draw: int, steps: int) -> tuple[np.ndarray, float]:
    """x at the end, and the worst loss that the run reports."""
    tasks = [bl.Task(name=f"clinic {i}", train=t, validation=v, test=s) for i, (t, v, s) in enumerate(clinics(draw))]
    problem = bl.Problem(upper=squared, lower=squared_penalised, tasks=tasks)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = bl.solve(problem, x=jnp.zeros(8), y=jnp.zeros(8), steps=steps, progress=False)
    return np.asarray(result.x, np.float64), float(result.worst)


def main() -> None:
    """The command."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--draws", type=int, default=100)
    parse.add_argument("--steps", type=int, default=2000)
    parse.add_argument("--cache", type=Path, help="the folder of the references; not given = that of run.py")
    given = parse.parse_args()
    began = time.perf_counter()
    ends = [solved(draw, given.steps) for draw in range(given.draws)]
    seconds = time.perf_counter() - began

    jax.config.update("jax_enable_x64", True)
    from benchmarks.convergence.reference import exact_losses, reference
    from benchmarks.convergence.run import CACHE

    ratios, errors, over_start = [], [], 0
    for draw, (x, reported) in enumerate(ends):
        case = ridge(draw)
        known, true = reference(case, given.cache or CACHE), float(np.max(exact_losses(case, x)))
        ratios += [true / known.same if np.isfinite(true) else np.inf]
        errors += [abs(reported - true) / true]
        over_start += not true <= known.start
    print(
        f"README's example, draws 0 to {given.draws - 1}, {given.steps} steps, float32: "
        f"{sum(r > 1.05 for r in ratios)} over 1.05 of the reference, {sum(r > 1.01 for r in ratios)} over 1.01, "
        f"{over_start} over the start, {int(np.sum(np.isinf(ratios)))} not finite; "
        f"ratio {np.median(ratios):.4f} in the median, {max(ratios):.4g} at most (draw {int(np.argmax(ratios))}); "
        f"reported worst off by {np.max(errors):.2g} at most; {seconds:.0f} s"
    )


if __name__ == "__main__":
    main()
