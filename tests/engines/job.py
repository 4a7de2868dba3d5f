"""A run of two processes, as a plain script: `python job.py FOLDER` by mpirun or srun, or alone.

It is slowed down, so that there is time to break it. Every process leaves its number in FOLDER/pid-RANK, and process 0
the result in FOLDER/result.npy.
"""

import os
import sys
import time
from pathlib import Path

import bilevel as bl

FOLDER = Path(sys.argv[1])
STEPS = 400

bl.distributed.start(timeout=120, heartbeat=float(os.environ.get("JOB_HEARTBEAT", 20)))

import jax  # noqa: E402
import numpy as np  # noqa: E402

jax.config.update("jax_enable_x64", True)


def upper(x, y, batch):
    return jax.numpy.mean((y - batch) ** 2) / 2 + 0.01 * jax.numpy.mean((x - 1) ** 2)


def lower(x, y, batch):
    return jax.numpy.mean((y - x - batch) ** 2) / 2


def slowly(evaluation):
    time.sleep(float(os.environ.get("JOB_SLOW", 0)))


def train():
    draw = np.random.default_rng(0)
    stack = bl.Task.stack(train=draw.normal(size=(5, 8)), validation=draw.normal(size=(5, 6)))
    problem = bl.Problem(upper, lower, stack, lower_batch=2, upper_batch=2)
    keeping = {"checkpoint": bl.Checkpoint(FOLDER / "run", seconds=None, steps=40), "resume": True}
    given = {"x": 4.0, "y": 0.0, "every": 10, "callback": slowly, "progress": False}
    return bl.solve(problem, bl.MORBiT(0.1, 0.5), steps=STEPS, **given, **keeping)


if __name__ == "__main__":
    rank = jax.process_index()
    (FOLDER / f"pid-{rank}").write_text(str(os.getpid()))
    result = train()
    if rank == 0:
        np.save(FOLDER / "result.npy", np.concatenate([np.ravel(result.x), result.weights]))
        print("finished", jax.process_count(), flush=True)
