"""A run of two processes, as a plain script: `python job.py FOLDER` by mpirun or srun, or alone.

It is slowed down, so that there is time to break it. Every process leaves its number in FOLDER/pid-RANK, and process 0
the result in FOLDER/result.npy.
"""

import os
import sys
import time
from pathlib import Path

import jax
import numpy as np

import bilevel as bl

STEPS = 400


def upper(x, y, batch):
    return jax.numpy.mean((y - batch) ** 2) / 2 + 0.01 * jax.numpy.mean((x - 1) ** 2)


def lower(x, y, batch):
    return jax.numpy.mean((y - x - batch) ** 2) / 2


def slowly(evaluation):
    time.sleep(float(os.environ.get("JOB_SLOW", 0)))


def train(folder):
    draw = np.random.default_rng(0)
    stack = bl.Task.stack(train=draw.normal(size=(5, 8)), validation=draw.normal(size=(5, 6)))
    problem = bl.Problem(upper, lower, stack, lower_batch=2, upper_batch=2)
    keeping = {"checkpoint": bl.Checkpoint(folder / "run", seconds=None, steps=40), "resume": True}
    given = {"x": 4.0, "y": 0.0, "every": 10, "callback": slowly, "progress": False}
    return bl.solve(problem, bl.MORBiT(0.1, 0.5), steps=STEPS, **given, **keeping)


if __name__ == "__main__":
    bl.distributed.start(timeout=120, heartbeat=float(os.environ.get("JOB_HEARTBEAT", 20)))
    jax.config.update("jax_enable_x64", True)
    place, rank = Path(sys.argv[1]), jax.process_index()
    (place / f"pid-{rank}").write_text(str(os.getpid()))
    result = train(place)
    if rank == 0:
        np.save(place / "result.npy", np.concatenate([np.ravel(result.x), result.weights]))
        print("finished", jax.process_count(), flush=True)
