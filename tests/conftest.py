import functools
import gc
import signal
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bilevel as bl
from bilevel.problem import initial_point

jax.config.update("jax_enable_x64", True)  # solutions are compared to 1e-6 and identities to rounding
jax.config.update("jax_numpy_rank_promotion", "raise")

# A shell that starts tests in the background has them ignore Ctrl-C, which some of them send to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Unoptimised: compiling these runs takes longer than running them.
@functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
def _run(solver, problem, x, y, key, steps):
    def step(k, state):
        return solver.step(problem, state, jax.random.fold_in(key, k))[0]

    return jax.lax.fori_loop(0, steps, step, solver.start(problem, x, y, key, steps))


def pytest_collection_finish():
    """What is imported by now stays: looking through it for garbage, again and again, took a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


MAPS = Path("/proc/self/maps")
MOST_MAPS = 20_000  # a third of what Linux allows a process


@pytest.fixture(scope="module", autouse=True)
def forget_programs():
    """Every program holds memory maps, of which a process may have so many: before that, all programs are let go."""
    yield
    if not MAPS.exists() or MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def run():
    """`run(solver, known, steps)` is the state then; like solvers on like problems compile once."""

    def go(solver, known, steps):
        solver.check(known.problem)
        key = jax.random.key(0)
        return _run(solver, known.problem, known.x, initial_point.lower_points(known.problem, None, key), key, steps)

    return go


def _padded(task, size):
    """The same task with `size` entries in y: A is padded with the identity, everything else with zeros."""

    def widen(a, *axes):
        return jnp.pad(a, [(0, more if k in axes else 0) for k in range(a.ndim)])

    more = size - task.y.shape[0]
    beyond = jnp.diag(jnp.array([0.0] * (size - more) + [1.0] * more))
    A, B, q = (task.train[name] for name in "ABq")
    C, w = (task.validation[name] for name in "Cw")
    return bl.Task(
        train={"A": widen(A, 1, 2) + beyond[None], "B": widen(B, 1), "q": widen(q, 1)},
        validation={**task.validation, "C": widen(C, 2), "w": widen(w, 1)},
        y=widen(task.y, 0),
    )


@pytest.fixture(scope="session")
def padded_ball():
    """`padded_ball(tasks, sizes)`: the ball around the points so numbered, their y padded to these sizes.

    By default it is `enclosing_ball` with all tasks in one group, which compiles faster than four; or another ball.
    """
    exact = bl.problems.enclosing_ball()

    def make(tasks=(0, 1, 2, 3), sizes=(5, 5, 5, 5), ball=exact):
        groups = ball.problem.groups
        own = [initial_point.task_of(ball.problem, group, 0) for group in groups]
        padded = [_padded(own[i], size) for i, size in zip(tasks, sizes, strict=True)]
        batches = {"lower_batch": groups[0].lower_batch, "upper_batch": groups[0].upper_batch}
        problem = bl.Problem(own[0].upper, own[0].lower, padded, **batches)
        return ball._replace(problem=problem, weights=ball.weights[np.array(tasks)])

    return make
