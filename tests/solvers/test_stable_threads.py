"""Two runs of STABLE at once finish: factorisations that are batched over tasks made them wait for each other."""

import os
import subprocess
import sys

LIMIT = 240  # seconds; the two runs take a few, most of them to compile

TWO_RUNS = """
import concurrent.futures
import jax, jax.numpy as jnp, numpy as np
import bilevel as bl

def upper(x, y, batch):
    return jnp.mean((batch @ y - 1) ** 2) + jnp.sum(x**2)

def lower(x, y, batch):
    return jnp.mean((batch @ y - jnp.sum(x)) ** 2) + jnp.sum((y - x[0]) ** 2)

rows = lambda seed: jnp.asarray(np.random.default_rng(seed).normal(size=(4, 256)) / 16, jnp.float32)
tasks = [bl.Task(rows(i), rows(8 + i), y=jnp.zeros(256)) for i in range(8)]
problem = bl.Problem(upper, lower, tasks)

def run(seed):
    return bl.solve(problem, bl.STABLE(0.01, 0.1), jnp.ones(2), steps=10, seed=seed, progress=False).status

run(0)  # compiles
with concurrent.futures.ThreadPoolExecutor(2) as threads:
    print(*threads.map(run, (1, 2)))
"""


def test_two_runs_at_once_finish():
    environment = {name: value for name, value in os.environ.items() if name != "NPROC"} | {"JAX_PLATFORMS": "cpu"}
    ran = subprocess.run(
        [sys.executable, "-c", TWO_RUNS], capture_output=True, text=True, timeout=LIMIT, env=environment, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["finished", "finished"]
