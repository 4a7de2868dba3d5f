"""Our step against PyTorch's: MORBiT as the paper's appendix C describes it, one task after the other.

Three shapes with synthetic data: FashionMNIST pairs, Letter hyperparameters, sinusoids. The mathematics is that of
`bl.MORBiT(alpha, beta, Unrolled(), SimplexAscent(gamma))`: one SGD step on every head, iterative differentiation
through it, the weighted upper loss backward to x, an SGD step on x, projected ascent of the weights. Three ways in
PyTorch:

    loop       a Python loop over the tasks: the paper's
    vmap       torch.func, all tasks at once
    compiled   the same through torch.compile

From the same start and with the same batches all must reach the same x; for the times each side draws its own batches.
Ours are steps inside whole calls of `bl.solve`, which checks, evaluates at both ends, averages and watches for
divergence; PyTorch's are bare steps. Everything is compiled and warm before; runs of a way and of ours alternate, so
that whatever else the machine does slows both, and the ratio is the median over neighbouring runs.

    python benchmarks/paper_loop.py                    # all cases
    python benchmarks/paper_loop.py letter sinusoids
    python benchmarks/paper_loop.py --repeats 15 --seconds 2
    NPROC=1 OMP_NUM_THREADS=1 python benchmarks/paper_loop.py --cpu   # CPU time on one thread: for a busy machine

PyTorch's threads wait for each other by spinning: where other programs want the cores, a step can take a hundred times
as long, and such ratios say nothing. Look at the load, or take the last command.

    python benchmarks/paper_loop.py --ours --steps 2000   # for versions.py: `solve` alone, without PyTorch

prints a line `name<TAB>CPU seconds` for each case.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import bilevel as bl

os.environ.setdefault("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # the time to compile, not to find it on disk
try:
    import torch
except ImportError:
    if "--ours" not in sys.argv:
        sys.exit("benchmarks/paper_loop.py needs PyTorch: pip install 'bilevel[torch]'")

from paper_shapes import CASES, Case, Tensors, as_tensor

# ------------------------------------------------------------------ PyTorch's ways


def start(case: Case) -> tuple[Tensors, torch.Tensor, torch.Tensor]:
    """x, the heads and the weights."""
    x, y = map(as_tensor, jax.tree.leaves(case.ready.x)), as_tensor(case.ready.problem.groups[0].y)
    return tuple(x), y, torch.full((len(y),), 1 / len(y))


def project_simplex(v: torch.Tensor) -> torch.Tensor:
    """The nearest point with entries of at least 0 that sum to 1, by sorting."""
    ordered = v.sort(descending=True).values
    excess = (ordered.cumsum(0) - 1) / torch.arange(1, len(v) + 1)
    support = (ordered > excess).sum() - 1
    return (v - excess.gather(0, support[None])).clamp(min=0)


class Loop:
    """One task after the other; a step has these batches, or draws its own."""

    def __init__(self, case: Case):
        self.case, (x, y, self.weights) = case, start(case)
        self.x = tuple(a.requires_grad_() for a in x)
        self.heads = [head.clone().requires_grad_() for head in y]

    def step(self, lower: Any = None, upper: Any = None) -> None:
        case, (alpha, beta, gamma), losses = self.case, self.case.rates, []
        for i, y in enumerate(self.heads):
            batch = case.train.one(i, case.sizes[0]) if lower is None else [a[i] for a in lower]
            (slope,) = torch.autograd.grad(case.lower(self.x, y, batch), y, create_graph=True)
            new = y - beta * slope
            batch = case.validation.one(i, case.sizes[1]) if upper is None else [a[i] for a in upper]
            losses.append(case.upper(self.x, new, batch))
            self.heads[i] = new.detach().requires_grad_()
        losses = torch.stack(losses)
        torch.autograd.backward(self.weights @ losses, inputs=self.x)  # once: faster than once a task
        with torch.no_grad():
            for a in self.x:
                a.sub_(a.grad, alpha=alpha)
                a.grad = None
                if case.nonnegative:
                    a.clamp_(min=0)
            self.weights = project_simplex(self.weights + gamma * losses)


class Vmap:
    """All tasks at once."""

    def __init__(self, case: Case, wrap: Callable = lambda function: function):
        self.case, self.state = case, start(case)
        self.move, self.draw_and_move = wrap(self._move), wrap(self._draw_and_move)

    @property
    def x(self) -> Tensors:
        return self.state[0]

    def _draw_and_move(self, x: Tensors, y: torch.Tensor, weights: torch.Tensor) -> tuple:
        case = self.case
        return self._move(x, y, weights, case.train.all(case.sizes[0]), case.validation.all(case.sizes[1]))

    def _move(self, x: Tensors, y: torch.Tensor, weights: torch.Tensor, lower: Any, upper: Any) -> tuple:
        case, (alpha, beta, gamma) = self.case, self.case.rates

        def one(x, y, lower, upper):
            new = y - beta * torch.func.grad(case.lower, 1)(x, y, lower)
            return case.upper(x, new, upper), new

        def weighted(x):
            losses, new = torch.func.vmap(one, in_dims=(None, 0, 0, 0))(x, y, lower, upper)
            return weights @ losses, (losses, new)

        direction, (losses, new) = torch.func.grad(weighted, has_aux=True)(x)
        x = tuple(a - alpha * d for a, d in zip(x, direction, strict=True))
        x = tuple(a.clamp(min=0) for a in x) if case.nonnegative else x
        return x, new, project_simplex(weights + gamma * losses)

    def step(self, lower: Any = None, upper: Any = None) -> None:
        with torch.no_grad():
            self.state = self.draw_and_move(*self.state) if lower is None else self.move(*self.state, lower, upper)


def compiled(case: Case) -> Vmap:
    return Vmap(case, torch.compile)


WAYS = {"loop": Loop, "vmap": Vmap, "compiled": compiled}


# ------------------------------------------------------------------ the same x from the same batches


def solver_of(case: Case) -> bl.MORBiT:
    alpha, beta, gamma = case.rates
    return bl.MORBiT(alpha, beta, bl.hypergradients.Unrolled(), bl.weightings.SimplexAscent(gamma))


def apart(case: Case, theirs: Loop | Vmap, steps: int = 3) -> float:
    """How far the two x are apart after some steps, as a part of how far they went."""
    generator, solver = np.random.default_rng(1), solver_of(case)
    batches = [[case.rows(generator, size) for size in case.sizes] for _ in range(steps)]
    problems = [case.make(*pairs).problem for pairs in batches]
    state = solver.init(problems[0], case.ready.x, key=jax.random.key(0), steps=steps)
    step = jax.jit(solver.step)
    for problem, pairs in zip(problems, batches, strict=True):
        state, _ = step(problem, state, jax.random.key(0))
        theirs.step(*[[torch.from_numpy(a) for a in pair] for pair in pairs])

    def largest(other: Any) -> float:
        return max(float(np.max(np.abs(a - b))) for a, b in zip(jax.tree.leaves(state.x), other, strict=True))

    return largest([a.detach().numpy() for a in theirs.x]) / largest(jax.tree.leaves(case.ready.x))


# ------------------------------------------------------------------ measuring


def elapsed(run: Callable[[int], Any], steps: int, clock: Callable[[], float]) -> float:
    began = clock()
    run(steps)
    return clock() - began


def steps_for(run: Callable[[int], Any], seconds: float, clock: Callable[[], float]) -> int:
    """How many steps take so long, besides what a call costs however short it is; warms up."""
    run(10)
    steps, call = 40, elapsed(run, 10, clock)
    while (more := elapsed(run, steps, clock) - call) < seconds / 5:
        steps *= 3
    return max(10, round((steps - 10) * seconds / more))


def ours(case: Case, steps: int) -> None:
    """So many steps in one call of `solve`."""
    result = bl.solve(case.ready.problem, solver_of(case), case.ready.x, steps=steps, every=steps, progress=False)
    jax.block_until_ready(result.x)


def measure(case: Case, way: str, repeats: int, seconds: float, clock: Callable[[], float]) -> str:
    """One row of the table, without its names."""
    make, began = WAYS[way], time.perf_counter()
    try:
        state = make(case)
        state.step()
    except Exception as error:
        if way != "compiled":
            raise
        return f"  impossible here: {type(error).__name__}: {(str(error).strip() or '-').splitlines()[0][:90]}"
    compiling = f"{time.perf_counter() - began:.1f}" if way == "compiled" else ""
    gap = apart(case, make(case))
    assert gap <= 1e-4, f"the x of the way {way!r} is {gap:.1e} from ours"

    def theirs(steps: int) -> None:
        for _ in range(steps):
            state.step()

    sides = [(run, steps_for(run, seconds, clock)) for run in (theirs, lambda steps: ours(case, steps))]
    times = np.array([[elapsed(run, k, clock) / k * 1e6 for run, k in sides] for _ in range(repeats)])
    ratio = times[:, 0] / times[:, 1]
    (us, our_us), ratios = np.median(times, axis=0), (np.median(ratio), ratio.min(), ratio.max())
    return f"{us:10.0f} {our_us:10.0f} " + " ".join(f"{r:7.1f}" for r in ratios) + f" {compiling:>9} {gap:9.0e}"


def main() -> None:
    warnings.filterwarnings("ignore", "dynamo_pgo force disabled")  # as asked above
    parser = argparse.ArgumentParser(description="Times bl.solve against the same steps in PyTorch.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; none = all")
    parser.add_argument("--repeats", type=int, default=7, help="pairs of neighbouring runs")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long one run takes, about")
    parser.add_argument("--cpu", action="store_true", help="measure CPU time of the process, not time passed")
    parser.add_argument("--ours", action="store_true", help="print `name<TAB>CPU seconds` of `solve` alone")
    parser.add_argument("--steps", type=int, default=2000, help="of a run with --ours")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"no case is named {', '.join(sorted(unknown))}: there are {', '.join(CASES)}")
    if options.ours:
        for name in options.cases or CASES:
            run = functools.partial(ours, CASES[name]())
            run(options.steps)  # compiles
            print(f"{name}\t{elapsed(run, options.steps, time.process_time):.6f}", flush=True)
        return
    clock = time.process_time if options.cpu else time.perf_counter
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads; JAX {jax.__version__}; ", end="")
    print(f"{os.cpu_count()} cores{load}. Microseconds{' of CPU time' if options.cpu else ''} a step.")
    columns = ("PyTorch", 10), ("ours", 10), ("ratio", 7), ("min", 7), ("max", 7), ("compile s", 9), ("x apart", 9)
    print(f"{'case':10} {'way':9}" + " ".join(f"{name:>{width}}" for name, width in columns), flush=True)
    for name in options.cases or CASES:
        case = CASES[name]()
        for way in WAYS:
            print(f"{name:10} {way:9}{measure(case, way, options.repeats, options.seconds, clock)}", flush=True)


if __name__ == "__main__":
    main()
