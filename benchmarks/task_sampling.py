"""What a step costs where it sees 64 of very many tasks, and what sampling does to the solution.

    python benchmarks/task_sampling.py time [n ...]      whole runs of `solve`, 64 of n tasks against all of 64
    python benchmarks/task_sampling.py gap               n = 200: tail gap at equal task evaluations, 10 seeds
    python benchmarks/task_sampling.py sinusoids         10,000 sinusoids against full participation at equal time
    python benchmarks/task_sampling.py letter            all 325 pairs of Letter, 16 in a step
    python benchmarks/task_sampling.py few               160,000 tasks, each visited six times, step by step
    python benchmarks/task_sampling.py many              16,000 tasks, visited 6 to 400 times: min-max against min-avg

`time` makes every run in a process of its own, so that its peak memory is its own. All write their tables
into docs/scaling.md.
"""

from __future__ import annotations

import itertools
import resource
import subprocess
import sys
import time
import warnings
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from page import put

import bilevel as bl
from bilevel._run import final_refit
from bilevel.solvers._base import some_tasks

DRAWN = 64
GIVEN = bl.MORBiT(1e-4, 0.01, bl.hypergradients.Tracked(0.01), bl.weightings.SimplexAscent(1e-8))


# ------------------------------------------------------------------ the cost of a step


def regressions(n: int, rows: int = 16, features: int = 8, inner: int = 6) -> tuple[bl.Problem, jax.Array, jax.Array]:
    """n linear regressions that share a representation x, a matrix; y_i are the coefficients of task i."""
    draws = np.random.default_rng(0)

    def data() -> tuple[np.ndarray, np.ndarray]:
        inputs = draws.normal(size=(n, rows, features)).astype(np.float32)
        return inputs, (inputs @ truth)[..., 0] + 0.1 * draws.normal(size=(n, rows)).astype(np.float32)

    truth = draws.normal(size=(n, features, 1)).astype(np.float32)

    def upper(x: jax.Array, y: jax.Array, batch: tuple) -> jax.Array:
        return jnp.mean((batch[0] @ x @ y - batch[1]) ** 2) / 2

    def lower(x: jax.Array, y: jax.Array, batch: tuple) -> jax.Array:
        return upper(x, y, batch) + 0.05 * jnp.sum(y**2)

    problem = bl.Problem(upper, lower, bl.Task.stack(train=data(), validation=data()), lower_batch=8, upper_batch=8)
    x = jnp.asarray(draws.normal(size=(features, inner)) / np.sqrt(features), jnp.float32)
    return problem, x, jnp.zeros(inner)


def start_of(problem: bl.Problem, x: jax.Array, y: jax.Array) -> tuple[float, float]:
    """The worst and the mean loss before the first step."""
    losses = problem.losses(x, problem.starting_y(y, jax.random.key(0)), "validation")
    return float(losses.max()), float(losses.mean())


def fitted(result: bl.Result) -> tuple[np.ndarray, np.ndarray | None]:
    """Validation and test losses of the averaged x, with every y fitted to it as at the end of a run that draws tasks.

    So runs that see all tasks in every step are judged as those that draw them are.
    """
    problem, iterate = result.problem, result.average
    if final_refit.is_needed(result.solver, problem):
        return iterate.losses, iterate.test_losses
    at = iterate.x, bl.PerTask(tuple(iterate.y.stacked))
    (found,) = final_refit.visited(problem, [at], jnp.array([final_refit.STEPS]))
    losses = jax.device_get(found.losses)
    return losses.validation, losses.test


def timed(n: int, rates: str, lower_steps: int, steps: int) -> None:
    """A whole run, after a short one that compiles: seconds a step by the clock and of the processor, memory in MB.

    And the worst and the mean loss of all tasks at the start and at the end: a run that blows up is none.
    """
    problem, x, y = regressions(n)
    solver = bl.MORBiT() if rates == "chosen" else GIVEN
    # A task that is visited rarely takes more lower steps by itself where rates are chosen.
    drawn = {"sampling": bl.sampling.Mixture(DRAWN)} if n > DRAWN else {"lower_steps": lower_steps}
    solver = solver.replace(**drawn)
    data = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    bl.solve(problem, solver, x, y, steps=100, progress=False)
    began, used = time.perf_counter(), time.process_time()
    result = bl.solve(problem, solver, x, y, steps=steps, progress=False)
    if result.steps < steps:
        raise RuntimeError(result.message)
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    losses, _ = fitted(result)
    print(seconds / steps, processor / steps, data, peak, *start_of(problem, x, y), losses.max(), losses.mean())


def time_steps(sizes: list[int], steps: int = 100_000, turns: int = 3) -> None:
    """The table, with ratios to all of 64 tasks with the same rates and as many lower steps.

    With given rates medians of several turns, in each of which all are run one after the other; with chosen rates, of
    one.
    """
    names = ("tasks", "rates", "lower steps", "us a step", "ratio", "processor us", "ratio", "data, MB", "peak, MB")
    names += ("worst, start", "mean", "worst, end", "mean")
    lines, seen = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"], {}
    solver = bl.MORBiT(sampling=bl.sampling.Mixture(DRAWN))
    rarely = {n: 1 + some_tasks.extra_lower_steps(solver, n, DRAWN) for n in sizes}
    given = [(n, "given", 1) for n in (DRAWN, *sizes)]
    chosen = [(DRAWN, "chosen", count) for count in sorted({1, *rarely.values()})]
    chosen += [(n, "chosen", count) for n, count in rarely.items()]
    found: dict[tuple, list[list[float]]] = {}
    for run in given * turns + chosen:
        command = [sys.executable, __file__, "one", *map(str, run), str(steps)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.setdefault(run, []).append(list(map(float, ran.stdout.split())))
        print(*run, ran.stdout.strip(), flush=True)
    for run, rows in found.items():
        (n, rates, lower_steps), (seconds, processor, data, peak, *losses) = run, np.median(rows, axis=0)
        base = seen.setdefault((rates, lower_steps), (seconds, processor))
        cells = [f"{n:,}", rates, str(lower_steps), f"{1e6 * seconds:.0f}", f"{seconds / base[0]:.2f}"]
        cells += [f"{1e6 * processor:.0f}", f"{processor / base[1]:.2f}", f"{data:,.0f}", f"{peak:,.0f}"]
        lines.append(f"| {' | '.join([*cells, *(f'{loss:.2f}' for loss in losses)])} |")
    ratios = {n: np.array(found[n, "given", 1])[:, 0] / np.array(found[DRAWN, "given", 1])[:, 0] for n in sizes}
    said = [f"{n:,} tasks {', '.join(f'{ratio:.2f}' for ratio in own)}" for n, own in ratios.items()]
    put("task sampling", "\n".join([*lines, "", f"Ratios with given rates, turn by turn: {'; '.join(said)}."]))


# ------------------------------------------------------------------ the solution, in closed form


def many_points(n: int = 200, rows: int = 32, noise: float = 0.5) -> tuple[bl.Problem, np.ndarray]:
    """The smallest ball around n points, of which three decide: x* = (2, 1), value 5/2. Batches are noisy."""
    draws = np.random.default_rng(0)
    angle, radius = draws.uniform(0, 2 * np.pi, n - 3), 0.8 * np.sqrt(5 * draws.uniform(0, 1, n - 3))
    inside = np.stack([2 + radius * np.cos(angle), 1 + radius * np.sin(angle)], axis=1)
    points = np.concatenate([[[0, 0], [4, 0], [1, 3]], inside])

    def scatter() -> np.ndarray:
        """Of mean 0 and of the same size for every task, so that the losses on all rows are known."""
        found = draws.normal(size=(n, rows, 2))
        found -= found.mean(axis=1, keepdims=True)
        return noise * found / np.sqrt((found**2).mean(axis=1, keepdims=True))

    def upper(x: jax.Array, y: jax.Array, batch: jax.Array) -> jax.Array:
        return jnp.mean(jnp.sum((y - batch) ** 2, axis=-1)) / 2 - noise**2

    def lower(x: jax.Array, y: jax.Array, batch: jax.Array) -> jax.Array:
        return jnp.mean(jnp.sum((y - x - batch) ** 2, axis=-1)) / 2

    train, validation = scatter().astype(np.float32), (points[:, None] + scatter()).astype(np.float32)
    tasks = bl.Task.stack(train=train, validation=validation)
    return bl.Problem(upper, lower, tasks, lower_batch=4, upper_batch=4), points


ALPHAS, GAMMAS = (
    (1e-4, 3e-4, 1e-3, 0.003, 0.01, 0.03, 0.1, 0.3),
    (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 0.03, 0.1),
)  # for all
SEEN = 300  # places of a run at which x is looked at


def path(problem: bl.Problem, solver: bl.Solver, steps: int, seed: jax.Array) -> jax.Array:
    """x at `SEEN` places of a run."""
    key = jax.random.key(seed)
    y = bl.PerTask((jnp.zeros((problem.size, 2)),))

    def several(state: bl.State, c: jax.Array) -> tuple[bl.State, jax.Array]:
        def one(i: jax.Array, state: bl.State) -> bl.State:
            return solver.stepper().step(problem, state, jax.random.fold_in(key, c * (steps // SEEN) + i))[0]

        state = jax.lax.fori_loop(0, steps // SEEN, one, state)
        return state, state.x

    first = solver.stepper().start(problem, jnp.array([-1.0, 3.0]), y, key, jnp.asarray(steps))
    return jax.lax.scan(several, first, jnp.arange(SEEN))[1]


def gaps(evaluations: int = 60_000, seeds: int = 10) -> None:
    """Tail gap max_i l_i(x) - 5/2 over the last fifth; rates chosen for each on four other seeds, by the same."""
    problem, points = many_points()
    run = jax.jit(jax.vmap(path, in_axes=(None, None, None, 0)), static_argnums=2)

    def gap(solver: bl.Solver, steps: int, numbers: jax.Array) -> np.ndarray:
        x = np.asarray(run(problem, solver, steps, numbers))[:, 4 * SEEN // 5 :]
        worst = (((x[:, :, None] - points) ** 2).sum(axis=-1) / 2).max(axis=-1)
        return (worst - 2.5).mean(axis=1)

    full, lines = None, ["| in a step | steps | alpha | gamma | gap | ratio |", "|---|---|---|---|---|---|"]
    for sampling in (bl.sampling.All(), bl.sampling.Mixture(10), bl.sampling.Uniform(10)):
        steps = evaluations // sampling.counts([problem.size])[0]
        found = {}
        for alpha, gamma in itertools.product(ALPHAS, GAMMAS):
            ascent, tracked = bl.weightings.SimplexAscent(gamma), bl.hypergradients.Tracked(0.5)
            solver = bl.MORBiT(alpha, 0.5, tracked, ascent, sampling=sampling)
            found[alpha, gamma] = gap(solver, steps, 1000 + jnp.arange(4)).mean(), solver
        best = min(found, key=lambda rates: found[rates][0])
        final = gap(found[best][1], steps, jnp.arange(seeds))
        full = final.mean() if full is None else full
        spread = final.std(ddof=1) / np.sqrt(seeds)
        cells = f"{best[0]:g} | {best[1]:g} | {final.mean():.4f} ± {spread:.4f} | {final.mean() / full:.2f}"
        lines.append(f"| `{sampling}` | {steps:,} | {cells} |")
    put("gap", "\n".join(lines))


# ------------------------------------------------------------------ the solution, on data


def sinusoids(n: int = 10_000, steps: int = 4000, seeds: int = 3) -> None:
    """Worst-decile loss on test rows, against full participation with as many steps as fit into the same time.

    With `Tandem`, what we recommend, whose rates fall over the steps that it is given: both know how many they have.
    """
    ready = bl.problems.sinusoid_regression(bl.datasets.sinusoids(n, n // 3))
    few, all_tasks = bl.Tandem(sampling=bl.sampling.Mixture(DRAWN)), bl.Tandem()

    def run(solver: bl.Solver, steps: int, seed: int) -> tuple[bl.Result, float]:
        began = time.perf_counter()
        result = bl.solve(ready.problem, solver, ready.x, steps=steps, seed=seed, progress=False)
        return result, time.perf_counter() - began

    run(few, 20, 0), run(all_tasks, 20, 0)  # compiled
    short, long = (run(all_tasks, steps, 0)[1] for steps in (20, 60))
    each = (long - short) / 40
    lines = ["| seed | in a step | steps | seconds | worst tenth |", "|---|---|---|---|---|"]
    for seed in range(seeds):
        sampled, seconds = run(few, steps, seed)
        whole, needed = run(all_tasks, max(1, round((seconds - short) / each) + 20), seed)
        for name, result, used in ((f"{DRAWN} of {n:,}", sampled, seconds), ("all", whole, needed)):
            worst = np.sort(fitted(result)[1])[-n // 10 :].mean()
            lines.append(f"| {seed} | {name} | {result.steps:,} | {used:.0f} | {worst:.3g} |")
            print(lines[-1], flush=True)
    put("sinusoids", "\n".join(lines))


def wider(rates: list[float], best: float) -> list[float]:
    """With one rate more where the best is at an end."""
    return [rates[0] / 10] * (best == rates[0]) + rates + [rates[-1] * 10] * (best == rates[-1])


def letter(steps: int = 1000, drawn: int = 16, seeds: int = 3) -> None:
    """All pairs of letters: the worst validation loss at equal task evaluations.

    Rates of x and of the weights are chosen for each by whole runs with another seed, on a grid that grows while the
    best are at its edge, three times at most; the rate of the weights of the run that draws is that of the grid times
    the share drawn.
    """
    ready = bl.problems.hyperparameters(bl.datasets.letter_pairs(325, rows=1468))
    n = ready.problem.size
    lines = ["| in a step | steps | alpha | gamma | worst, by seed | mean | ratio |", "|---" * 7 + "|"]
    base = None
    for name, sampling, share in (
        ("all 325", bl.sampling.All(), 1),
        ("16 of 325", bl.sampling.Mixture(drawn), drawn / n),
    ):

        def worst(alpha: float, gamma: float, seed: int, sampling: Any = sampling, share: float = share) -> float:
            ascent = bl.weightings.SimplexAscent(gamma * share)
            solver = bl.MORBiT(alpha, 0.1, bl.hypergradients.Tracked(0.1), ascent, sampling=sampling)
            result = bl.solve(ready.problem, solver, ready.x, steps=round(steps / share), seed=seed, progress=False)
            return float(fitted(result)[0].max()) if result.status == "finished" else np.inf

        alphas, gammas, tried, best = [0.1, 1.0, 10.0], [1e-4, 1e-3, 1e-2], {}, (np.nan, np.nan)
        for _ in range(4):
            with warnings.catch_warnings(action="ignore"):  # of what diverges
                new = [rates for rates in itertools.product(alphas, gammas) if rates not in tried]
                tried |= {rates: worst(*rates, seed=1000) for rates in new}
            best = min(tried, key=tried.__getitem__)
            alphas, gammas = wider(alphas, best[0]), wider(gammas, best[1])
        found = [worst(*best, seed=seed) for seed in range(seeds)]
        base = np.mean(found) if base is None else base
        cells = f"{round(steps / share):,} | {best[0]:g} | {best[1]:g}{' x 16 / 325' * (share < 1)}"
        cells += f" | {', '.join(f'{loss:.3f}' for loss in found)} | {np.mean(found):.3f} | {np.mean(found) / base:.2f}"
        lines.append(f"| {name} | {cells} |")
        print(lines[-1], tried, flush=True)
    put("letter", "\n".join(lines))


# ------------------------------------------------------------------ how often a task must be visited


def few_visits(n: int = 160_000, drawn: int = 16, visits: int = 6, seeds: int = 3) -> None:
    """What becomes of tasks that are visited a few times: with one lower step a visit, with what `solve` does, fitted.

    Losses of the last iterate over all tasks, with y as the visits left it and with y fitted at the end.
    """
    problem, x, y = regressions(n)
    steps, found = visits * n // drawn, {}
    sampling = bl.sampling.Mixture(drawn)
    runs = [("one lower step", bl.MORBiT(), 0), ("four", bl.MORBiT(), None), ("four, `Tandem`", bl.Tandem(), None)]
    for (name, solver, more), seed in itertools.product(runs, range(seeds)):
        seen: list[dict] = []
        with mock.patch.object(some_tasks, "STEPS", some_tasks.STEPS if more is None else more):
            jax.clear_caches()  # what is compiled does not know of it
            options = {"callback": seen.append, "every": steps, "progress": False, "seed": seed}
            result = bl.solve(problem, solver.replace(sampling=sampling), x, y, steps=steps, **options)
        left = problem.losses(result.x, bl.PerTask(tuple(seen[-1]["y"].stacked)), "validation")
        for how, losses in (("as visits left it", left), ("fitted", result.losses)):
            size = float(jnp.linalg.norm(result.x))
            found.setdefault((name, how), []).append([losses.max(), np.quantile(losses, 0.999), losses.mean(), size])
            print(name, how, seed, *found[name, how][-1], flush=True)
    first = problem.losses(x, problem.starting_y(y, jax.random.key(0)), "validation")
    lines = ["| lower steps a visit | y | worst | 99.9 % | mean | norm of x |", "|---" * 6 + "|"]
    start = [first.max(), np.quantile(first, 0.999), first.mean(), float(jnp.linalg.norm(x))]
    lines.append(f"| at the start | | {' | '.join(f'{value:.3g}' for value in start)} |")
    for (name, how), rows in found.items():
        means, spread = np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1)
        cells = [f"{mean:.3g} ± {own:.2g}" for mean, own in zip(means, spread, strict=True)]
        lines.append(f"| {name} | {how} | {' | '.join(cells)} |")
    put("few visits", "\n".join(lines))


def many_visits(n: int = 16_000, seeds: int = 3) -> None:
    """The worst loss, and the mean, against how often a task was visited: min-max and min-avg."""
    problem, x, y = regressions(n)
    lines = ["| visits | steps | worst, min-max | worst, min-avg | mean, min-max | mean, min-avg |", "|---" * 6 + "|"]
    for visits in (6, 25, 100, 400):
        steps, cells = visits * n // DRAWN, {}
        for weighting in (bl.weightings.SimplexAscent(), bl.weightings.Average()):
            solver = bl.Tandem(sampling=bl.sampling.Mixture(DRAWN), weighting=weighting)
            runs = [bl.solve(problem, solver, x, y, steps=steps, seed=s, progress=False) for s in range(seeds)]
            for what in (np.max, np.mean):
                own = [what(run.average.losses) for run in runs]
                cells.setdefault(what, []).append(f"{np.mean(own):.3g} ± {np.std(own, ddof=1):.2g}")
        lines.append(f"| {visits} | {steps:,} | {' | '.join([*cells[np.max], *cells[np.mean]])} |")
        print(lines[-1], flush=True)
    put("many visits", "\n".join(lines))


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["time"]
    if what == "one":
        timed(int(rest[0]), rest[1], *map(int, rest[2:]))
    elif what == "time":
        time_steps([int(n) for n in rest] or [100_000, 1_000_000])
    else:
        {"gap": gaps, "sinusoids": sinusoids, "letter": letter, "few": few_visits, "many": many_visits}[what]()
