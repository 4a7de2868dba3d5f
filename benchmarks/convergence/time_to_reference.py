"""CPU seconds until the worst loss is within 1 % of the reference: `bl.solve`, a script by hand, SciPy's SLSQP.

Ridge penalties as logarithms, as in README: 4, 64 and 1,024 tasks with y of 8 numbers, and y of 64 and 512 with 4.

    solve     `bl.solve` with nothing given; it is there at the first evaluation that is (after 1, 2, 4, 8, ... steps)
    script    what a user would write instead: y in closed form, JAX's derivatives through the linear solve, a
              log-sum-exp made sharper three times, L-BFGS-B
    slsqp     min t subject to l_i(x) <= t, with the same losses; at most LIMIT seconds

    python -m benchmarks.convergence.time_to_reference [--steps 2000] [--only 4x8 solve] [--out times.json]

Every pair of case and method is a process of one thread, float64, without compiled programs from before. The first
call compiles (and imports), the second one does not. Seconds are those of the whole process, `time.process_time`.
"""

from __future__ import annotations

import os

os.environ |= {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "BILEVEL_COMPILE_CACHE": "off"}

import argparse
import contextlib
import functools
import json
import subprocess
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize

jax.config.update("jax_enable_x64", True)

from benchmarks.convergence.families import squared, squared_penalised  # noqa: E402
from benchmarks.convergence.reference import MANY, Oracle, epigraph, smoothed  # noqa: E402

import bilevel as bl  # noqa: E402

CASES = {f"{n}x{d}": (n, d) for n, d in ((4, 8), (64, 8), (1024, 8), (4, 64), (4, 512))}
METHODS = ("solve", "script", "slsqp")
LIMIT = 120.0  # CPU seconds of one call of SLSQP
WITHIN = 1.01
HEADER = f"""CPU seconds with compilation, then without; first: within 1 % of the reference, at that step or evaluation
{"case":>7} {"method":7} {"first":>9} {"at":>6} {"whole":>9} {"first":>9} {"at":>6} {"whole":>9} {"end/ref":>9}"""


@functools.cache
def rows(n: int, d: int) -> tuple[np.ndarray, ...]:
    """Training and validation rows of every task, 1.5 d and 5 d of them."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.4) * (8 / d) ** 0.5
    train, validation = (rng.normal(size=(n, count, d)) for count in (3 * d // 2, 5 * d))
    outcomes = [np.einsum("nrd,nd->nr", a, truth) + 0.5 * rng.normal(size=a.shape[:2]) for a in (train, validation)]
    return train, outcomes[0], validation, outcomes[1]


def moments(n: int, d: int) -> tuple[np.ndarray, ...]:
    """Of the training rows, what the closed form needs, and the validation rows."""
    train, outcome, *validation = rows(n, d)
    products = np.einsum("nri,nrj->nij", train, train), np.einsum("nri,nr->ni", train, outcome)
    return *(a / train.shape[1] for a in products), *validation


def losses(x, data):
    """Every l_i(x), by the closed form of ridge regression."""

    def one(gram, b, points, outcome):
        y = jnp.linalg.solve(gram + jnp.diag(jnp.exp(x)), b)
        return jnp.mean((points @ y - outcome) ** 2)

    return jax.vmap(one)(*data)


class Ridge(Oracle):
    """The oracle of the reference with the closed form; it notes when it came within reach."""

    def __init__(self, n: int, d: int, target: float = -np.inf):
        self.case = types.SimpleNamespace(low=-30.0, high=30.0)
        self.start, self.count, self.best, self.last = np.zeros(d), 0, (np.inf, None), None
        self.data, self.both = moments(n, d), _both()
        self.target, self.began, self.reached = target, time.process_time(), None

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses and gradients."""
        if self.last is None or not np.array_equal(self.last[0], x):
            found, slopes = self.both(x, self.data)
            self.count, self.last = self.count + 1, (np.array(x), np.asarray(found), np.asarray(slopes))
            if self.last[1].max() < self.best[0]:
                self.best = float(self.last[1].max()), np.array(x)
            used = time.process_time() - self.began
            if self.reached is None and self.best[0] <= WITHIN * self.target:
                self.reached = {"cpu": used, "evaluations": self.count}
            if used > LIMIT and np.isfinite(self.target):
                raise TimeoutError
        return self.last[1], self.last[2]


@functools.cache
def _both():
    def each(x, data):
        one = lambda x, *own: losses(x, jax.tree.map(lambda a: a[None], own))[0]  # noqa: E731
        value = lambda *own: jax.value_and_grad(one)(x, *own)  # noqa: E731
        return jax.vmap(value)(*data)

    return jax.jit(each)


def target(n: int, d: int) -> float:
    """The reference, both ways: a log-sum-exp to a sharpness of 10,000, and SLSQP where x is small."""
    oracle = Ridge(n, d)
    smoothed(oracle, oracle.start)
    if d < MANY:
        epigraph(oracle, oracle.best[1])
        epigraph(oracle, oracle.start)
    return oracle.best[0]


def slsqp(n: int, d: int, wanted: float) -> dict[str, Any]:
    """One call of the reference's SLSQP."""
    oracle = Ridge(n, d, wanted)
    with contextlib.suppress(TimeoutError):
        epigraph(oracle, oracle.start)
    whole = time.process_time() - oracle.began
    return {"first": oracle.reached, "cpu": whole, "evaluations": oracle.count, "ratio": oracle.best[0] / wanted}


def script(n: int, d: int, wanted: float, compiled: dict) -> dict[str, Any]:
    """One call of a user's script; `compiled` keeps its function between calls."""
    began, seen, data = time.process_time(), [], moments(n, d)
    if not compiled:

        def smooth(x, data, sharpness):
            own = losses(x, data)
            return jax.nn.logsumexp(sharpness * own) / sharpness, jnp.max(own)

        compiled["f"] = jax.jit(jax.value_and_grad(smooth, has_aux=True))

    def value(x, sharpness):
        (found, worst), slope = compiled["f"](x, data, sharpness)
        seen.append((float(worst), time.process_time() - began))
        return float(found), np.asarray(slope)

    x = np.zeros(d)
    for sharpness in (10.0, 100.0, 1000.0):
        x = minimize(value, x, args=(sharpness,), jac=True, method="L-BFGS-B").x
    first = next(({"cpu": cpu, "evaluations": k} for k, (w, cpu) in enumerate(seen, 1) if w <= WITHIN * wanted), None)
    whole = time.process_time() - began
    return {"first": first, "cpu": whole, "evaluations": len(seen), "ratio": min(w for w, _ in seen) / wanted}


def solve(n: int, d: int, wanted: float, steps: int) -> dict[str, Any]:
    """One call of `bl.solve`."""
    train, outcome, validation, own = rows(n, d)
    began, seen = time.process_time(), []
    tasks = bl.Task.stack(train=(train, outcome), validation=(validation, own))
    problem = bl.Problem(squared, squared_penalised, tasks)

    def keep(evaluation):
        seen.append((int(evaluation["step"]), np.array(evaluation["x"]), time.process_time() - began))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zeros = jnp.zeros(d)
        result = bl.solve(problem, x=zeros, y=zeros, steps=steps, callback=keep, progress=False)
    whole, data, judge = time.process_time() - began, moments(n, d), jax.jit(losses)
    true = lambda x: float(jnp.max(judge(x, data)))  # noqa: E731
    first = next(({"cpu": cpu, "evaluations": k} for k, x, cpu in seen if true(x) <= WITHIN * wanted), None)
    ratio = true(result.x) / wanted
    return {"first": first, "cpu": whole, "evaluations": result.steps, "ratio": ratio, "solver": repr(result.solver)}


def measure(case: str, method: str, wanted: float, steps: int) -> dict[str, Any]:
    """Both calls of a method."""
    size, kept = CASES[case], {}
    call = {
        "solve": lambda: solve(*size, wanted, steps),
        "script": lambda: script(*size, wanted, kept),
        "slsqp": lambda: slsqp(*size, wanted),
    }[method]
    return {"case": case, "method": method, "target": wanted, "compiling": call(), "compiled": call()}


def printed(found: dict[str, Any]) -> str:
    """A row of the table."""
    said = [f"{found['case']:>7} {found['method']:7}"]
    for name in ("compiling", "compiled"):
        first = found[name]["first"]
        said += [f"{'never':>9} {'':>6}" if first is None else f"{first['cpu']:9.3f} {first['evaluations']:6}"]
        said += [f"{found[name]['cpu']:9.3f}"]
    said += [f"{found['compiled']['ratio']:9.4f}"]
    return " ".join(said)


def main() -> None:
    """The command."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--steps", type=int, default=2000)
    parse.add_argument("--only", nargs="*", default=[], help="cases and methods")
    parse.add_argument("--out", type=Path, default=Path("times.json"))
    parse.add_argument("--one", nargs=3, help=argparse.SUPPRESS)  # case, method, target: one process
    given = parse.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], given.one[1], float(given.one[2]), given.steps)))
        return
    cases = [case for case in CASES if case in given.only] or list(CASES)
    methods = [method for method in METHODS if method in given.only] or list(METHODS)
    print(HEADER)
    lines = []
    for case in cases:
        wanted = target(*CASES[case])
        for method in methods:
            command = [sys.executable, "-m", "benchmarks.convergence.time_to_reference", "--steps", str(given.steps)]
            command += ["--one", case, method, repr(wanted)]
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            lines += [json.loads(told.splitlines()[-1])]
            print(printed(lines[-1]), flush=True)
            given.out.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
