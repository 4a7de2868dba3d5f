"""The numbers of every solver, to compare two versions of the library: bits, or how far apart they are.

    python -m benchmarks.same_numbers record before.npz
    python -m benchmarks.same_numbers record after.npz
    python -m benchmarks.same_numbers compare before.npz after.npz

50 steps of every solver in float64, on three problems with batches (a quadratic, ridge penalties, a network with
heads), of all tasks, of some of them, and of all on two devices; rates chosen and given. What is compared is the last,
the best and the averaged point, the history, and how many programs were compiled.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("JAX_NUM_CPU_DEVICES", "2")

import jax

jax.config.update("jax_enable_x64", True)  # before any array is made

import jax.monitoring  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import bilevel as bl  # noqa: E402

STEPS = 50
COMPILED = [0]
OTHERS = {"GDA", "HiBSA", "TRMAML", "MMB"}  # solve other kinds of problem
WITHOUT_SAMPLING = {"Descent", "FSLA", "VRBO"} | OTHERS


def _count(event: str, _: float, **__: Any) -> None:
    COMPILED[0] += event == "/jax/core/compile/backend_compile_duration"


jax.monitoring.register_event_duration_secs_listener(_count)


def squared(x, y, batch):
    return jnp.mean((batch[0] @ y - batch[1]) ** 2)


def squared_penalised(x, y, batch):
    return squared(x, y, batch) + jnp.sum(jnp.exp(x) * y**2)


def head(x, y, batch):
    return jnp.mean((jnp.tanh(batch[0] @ x["w"]) @ y - batch[1]) ** 2)


def head_penalised(x, y, batch):
    return head(x, y, batch) + 0.1 * jnp.sum(y**2)


def ball(x, y, batch):
    return jnp.mean(jnp.sum((y - batch) ** 2, axis=1)) / 2


def ball_lower(x, y, batch):
    return jnp.mean(jnp.sum((y - x - 0.1 * batch) ** 2, axis=1)) / 2


def problems() -> dict[str, tuple[Any, Any, Any]]:
    """Problem, x and y by name."""
    rng = np.random.default_rng(0)

    def rows(count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.normal(size=(count, width)), rng.normal(size=count)

    def tasks(make: Any) -> list[Any]:
        return [bl.Task(train=make(8), validation=make(12)) for _ in range(5)]

    batches = {"lower_batch": 4, "upper_batch": 4}
    points = lambda count: rng.normal(size=(count, 2))  # noqa: E731
    network = {"w": jnp.asarray(rng.normal(size=(3, 4)))}
    return {
        "ball": (bl.Problem(ball, ball_lower, tasks(points), **batches), jnp.ones(2), jnp.zeros(2)),
        "ridge": (
            bl.Problem(squared, squared_penalised, tasks(lambda count: rows(count, 3)), **batches),
            jnp.zeros(3),
            jnp.zeros(3),
        ),
        "network": (
            bl.Problem(head, head_penalised, tasks(lambda count: rows(count, 3)), **batches),
            network,
            jnp.zeros(4),
        ),
    }


def others() -> Iterator[tuple[str, Any, Any, Any, Any]]:
    """Solvers of other kinds of problem."""
    known = bl.problems.reduced_ball()
    for name in ("GDA", "HiBSA", "TRMAML"):
        try:
            yield name, getattr(bl, name)(0.1, bl.weightings.SimplexAscent(0.05)), known.problem, known.x, None
        except TypeError:
            continue


def runs() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Name, solver, and arguments of `solve`."""
    robust = bl.weightings.SimplexAscent()
    for where, (problem, x, y) in problems().items():
        for name in sorted(set(bl.solvers.__all__) - OTHERS):
            made = getattr(bl, name)
            given = {"problem": problem, "x": x, "y": y}
            yield f"{where} {name}", made(weighting=robust), given
            if name != "Descent" and where == "ball":
                rates = {"upper_lr": 0.03, "lower_lr": 0.1, "weighting": bl.weightings.SimplexAscent(0.01)}
                yield f"{where} {name} rates", made(**rates), given
            if name not in WITHOUT_SAMPLING:
                yield f"{where} {name} some", made(weighting=robust, sampling=bl.sampling.Mixture(2)), given
            if where == "network" or name == "MORBiT":
                yield f"{where} {name} devices", made(weighting=robust), given | {"devices": 2}
    for name, solver, problem, x, y in others():
        yield f"reduced {name}", solver, {"problem": problem, "x": x, "y": y}


def numbers(result: Any) -> list[np.ndarray]:
    """All that is compared of a result."""
    points = [(p.x, dict(p.y), p.weights) for p in (result.last, result.best, result.average)]
    return [np.asarray(leaf, float) for leaf in jax.tree.leaves((points, result.history.validation))]


def record(path: str, only: str) -> None:
    """Makes the runs, and writes down their numbers."""
    kept = {}
    for name, solver, given in runs():
        if only not in name:
            continue
        before = COMPILED[0]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = bl.solve(solver=solver, steps=STEPS, every=10, seed=0, progress=False, **given)
                leaves = numbers(result)
            except (ValueError, TypeError) as refused:
                print(f"{name}: {type(refused).__name__} {refused}", flush=True)
                continue
        kept[name] = np.concatenate([np.ravel(leaf) for leaf in leaves])
        kept[f"{name}|programs"] = np.array([COMPILED[0] - before])
        print(f"{name}: {result.worst:.6g}, {COMPILED[0] - before} programs", flush=True)
        jax.clear_caches()  # hundreds of programs at once are more than some systems have memory maps for
    np.savez(path, **kept)


def compare(first: str, second: str) -> None:
    """What differs."""
    one, two = np.load(first), np.load(second)
    names = [name for name in one.files if "|" not in name]
    same = 0
    for name in names:
        if name not in two.files:
            print(f"{name}: missing")
        elif one[name].shape != two[name].shape:
            print(f"{name}: {one[name].size} numbers, then {two[name].size}")
        elif one[name].tobytes() == two[name].tobytes():
            same += 1
        else:
            apart = np.nanmax(np.abs(one[name] - two[name]) / (1 + np.abs(one[name])))
            print(f"{name}: {apart:.2g} apart")
    programs = [
        sum(int(f[n][0]) for n in f.files if "|" in n and n in one.files and n in two.files) for f in (one, two)
    ]
    print(f"{same} of {len(names)} runs have the same bits; programs compiled: {programs[0]}, then {programs[1]}")


def main() -> None:
    """The command."""
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("what", choices=["record", "compare"])
    parse.add_argument("files", nargs="+")
    parse.add_argument("--only", default="", help="runs whose name contains this")
    given = parse.parse_args()
    if given.what == "record":
        record(given.files[0], given.only)
    else:
        compare(*given.files)


if __name__ == "__main__":
    main()
