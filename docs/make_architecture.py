"""Writes docs/architecture.md: the rooms, the way of one `solve`, where each of the paper's equations is computed.

python docs/make_architecture.py

A place is found by a piece of its code, which must be in its file exactly once: where code moves, the page follows, and
where it changes, this fails.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "bilevel"
PAGE = DOCS / "architecture.md"

# Imports go up this list only; rooms of one line do not know each other. tests/test_imports.py holds it.
ROOMS = (
    ("_core", "pytrees, linear algebra, checks of values, files that are not trusted, the dataclass that parts are"),
    ("problem", "what is solved: tasks, sources of rows, groups of like tasks, constraints, the kinds of problem"),
    ("lower", "how y is moved or solved: gradient steps, running Hessians, Newton, L-BFGS; rules and plateaus"),
    ("hypergradients", "how the implicit term is estimated, the upper direction, trackers of variance reduction"),
    ("weightings", "how losses become weights"),
    ("rates", "where rates come from: given, measured, relative"),
    ("solvers", "one paper a file, its equations and its step; what is recommended; sampling of tasks"),
    ("results", "result, history, findings, plots, files"),
    ("_run", "`solve`, the driver, the compiled loop; checkpoints, divergence, loggers, devices, hosts, engines"),
    ("diagnostics", "certificates, checks, single-task baselines, adaptation, theory, cost"),
    ("testing", "conformance suites for parts of your own"),
    ("studies", "ready problems and data, comparison, the paper's reproduction"),
    ("report", "a result as a page"),
    ("estimators", "scikit-learn's conventions; tables of rows"),
    ("cli", "the command line: parses, calls, prints"),
)

# What the paper has, where it is computed, and the piece of code that does it.
EQUATIONS = (
    ("Algorithm 1, one step", "solvers/morbit.py", "def step(self, problem"),
    ("lower step, y_i - beta h_i", "lower/steps.py", "return (optax.apply_updates(y, updates), optimiser), None"),
    ("h_i, the gradient of g_i on a batch", "lower/steps.py", "jax.value_and_grad(task.lower, argnums=1)"),
    (
        "D_i = f_x - J A^-1 f_y, by a surrogate",
        "hypergradients/hypergradient.py",
        "slope - jax.lax.stop_gradient(slope)",
    ),
    (
        "h_x = sum_i lambda_i D_i, one reverse pass",
        "hypergradients/upper.py",
        "jax.grad(weighted, has_aux=True)(point.x)",
    ),
    ("random Neumann series, the paper's estimator", "hypergradients/neumann.py", "jax.random.randint("),
    ("summed Neumann series", "hypergradients/neumann.py", "scale, v = add(q, v, r, curvature)"),
    ("projected step of x", "solvers/_base/bilevel.py", "x = problem.constraint.project(optax"),
    ("step of the weights, lambda + gamma h", "weightings/min_max.py", "moved = weights + rate * ascent"),
    ("projection onto the simplex", "weightings/min_max.py", "projection_simplex(values, total)"),
    ("gap in x, ||x_hat - x||^2", "diagnostics/certificate.py", "x_gap=float(_distance(proximal.point, x))"),
    ("gap in y, max_i ||y_i - y_i*||^2", "diagnostics/certificate.py", "y_gap=float(np.max(y_gaps))"),
    ("gap in the weights", "diagnostics/certificate.py", "weights_gap=float(np.max(compared) - own @ compared)"),
    ("Theorem 1's rates", "diagnostics/theory/theorems.py", "def step_sizes("),
)

# The way of `bl.solve(problem, bl.MORBiT(), x=x, y=y, steps=steps)`.
WAY = (
    ("`solve` checks what it is given, and asks for a solver where none is", "_run/solving.py", "if x is _MISSING:"),
    ("a `Run` is what is to be made; it wraps the solver where steps see some tasks", "_run/run.py", "class Run:"),
    ("`run_lanes` drives it: calls, evaluations, progress, checkpoints", "_run/driver.py", "def run_lanes("),
    ("`advance` is one compiled call and what is due after it", "_run/driver.py", "def advance("),
    ("`steps` is the compiled loop; step k draws from `fold_in(key, k)`", "_run/loop.py", "def steps("),
    ("the solver's `step`: y, direction, x, weights", "solvers/morbit.py", "def step(self, problem"),
    ("`descend` moves every y", "lower/steps.py", "def descend("),
    ("`Upper.direction` evaluates the upper level at a `Point`", "hypergradients/upper.py", "def direction(self"),
    (
        "`Problem.each` calls a function with every task: the one place that vmaps over tasks",
        "problem/problem.py",
        "def each(",
    ),
    ("`fit` fits a copy of y to x for an evaluation, so that losses are those of x", "_run/evaluation.py", "def fit("),
    ("`recording.result` makes the `Result`", "_run/recording.py", "def result("),
)

HEAD = """# Architecture

<!-- Made by docs/make_architecture.py. Do not edit. -->

For who changes the code. How to use the library: [README](../README.md).

## The rooms

A room is a folder of `src/bilevel` with one subject. Imports go up this list only, which a test holds. A name with an
underscore is internal. `import bilevel` and `bl.solve` never load the rooms after `diagnostics`: they use the library
as a program of yours would. Public modules keep short names wherever they are: `bl.datasets` is `studies/datasets`.

{rooms}

## Ideas

- **A solver is a few parts**: how y moves, how the hypergradient is estimated, how x moves, how losses become weights.
  A part is a frozen dataclass (`_core/module.py`). Its rates are data, so that other rates compile nothing.
- **A hypergradient is a surrogate**: a scalar for each task. Its value is f_i, and its gradient in x is the estimate.
  So the direction of x is one reverse pass over the weighted sum.
- **One task at a time**: users and estimators write functions of one task. Like tasks form a group, which is vmapped.
  What belongs to tasks is a `PerTask`: one pytree for each group, with a leading axis of tasks.
- **The sample is explicit**: a source draws row numbers and takes rows. The same batch is the same sample.
- **One state**: a solver's `State` says which leaves are shared and which belong to tasks. "Some of the tasks", "these
  tasks on that device" and "write it down" are written once, for any solver.
- **Modes are wrappers**: a solver that sees some of the tasks, or fresh ones, is wrapped once, when a run is made
  (`solvers/_base/some_tasks.py`, `solvers/_base/fresh_tasks.py`).
- **jit and scan are in the driver**: `init` and `step` of a solver are pure, and a loop of your own may call them.

## The way of one solve

{way}

## The paper's equations

Gu, Lu, Ram, Weng, ICLR 2023. f_x is a gradient in x, A the Hessian of g_i in y, J its mixed second derivative.

{equations}

## Where to add what

| what | where |
|---|---|
| a solver | one file in `solvers/`, its name in `solvers/__init__.py`: [how](../CONTRIBUTING.md#a-new-solver) |
| an estimator | one file in `hypergradients/`, a class that inherits `Hypergradient` |
| a weighting | one file in `weightings/`, a class that inherits `Weighting` |
| a constraint | a class in `problem/constraints.py` |
| how lower problems are solved | one file in `lower/`, a class that inherits `Lower` |
| a finding about a run | a function in `results/findings/`, listed in `results/findings/finding.py` |
| a ready problem, data | `studies/problems/`, `studies/datasets/` |
| a figure or claim of the paper | `studies/paper/experiments.py`, `figures.py`, `claims.py` |
| a command | `cli/` |

`bl.testing` checks a solver, an estimator, a weighting or a constraint of your own by the suites that ours pass.
"""


def place(path: str, code: str) -> str:
    """The file and line of a piece of code, as a link."""
    text = (SOURCE / path).read_text()
    if text.count(code) != 1:
        raise ValueError(f"{path} has {code!r} {text.count(code)} times: name another piece in {Path(__file__).name}.")
    line = text[: text.index(code)].count("\n") + 1
    return f"[{path}:{line}](../src/bilevel/{path}#L{line})"


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """For a page."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows))


def page() -> str:
    """The whole of it."""
    way = [f"{k}. {what} ({place(path, code)})" for k, (what, path, code) in enumerate(WAY, 1)]
    equations = [(what, place(path, code)) for what, path, code in EQUATIONS]
    return HEAD.format(
        rooms=table(("room", "what is in it"), [(f"`{room}/`", what) for room, what in ROOMS]),
        way="\n".join(way),
        equations=table(("equation", "computed at"), equations),
    )


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
