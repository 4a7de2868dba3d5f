"""A run of one process of several that is kept: `python kept_in_processes.py FOLDER OUT OPTIONS`, OPTIONS in JSON.

    address, processes, process   as in `bl.distributed.start`
    one_file                      keep it in one file, rather than by Orbax
    stop                          Ctrl-C comes in the evaluation of this step
    steps                         how many
    slow                          seconds that every evaluation takes
    elsewhere                     process 1 gets another folder

Five tasks, of which one is left over on two devices, and x in parts where there are two. Process 0 leaves what the run
ends with in OUT, unless it was stopped.
"""

import json
import os
import signal
import sys
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import optax

import bilevel as bl


def upper(x, y, batch):
    rows, wanted = batch
    return jax.numpy.mean((jax.numpy.tanh(rows @ x) @ y - wanted) ** 2)


def lower(x, y, batch):
    return upper(x, y, batch) + 0.1 * jax.numpy.sum(y**2)


def given(devices):
    draw = np.random.default_rng(0)
    rows = lambda count: (draw.normal(size=(5, count, 6)), draw.normal(size=(5, count)))  # noqa: E731
    problem = bl.Problem(upper, lower, bl.Task.stack(train=rows(9), validation=rows(12)), lower_batch=4, upper_batch=4)
    x = draw.normal(size=(6, 4))
    if devices == 1:
        return {"problem": problem, "x": x}
    mesh = jax.make_mesh((devices,), ("tasks",), axis_types=(jax.sharding.AxisType.Auto,))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("tasks"))
    return {"problem": problem, "x": jax.make_array_from_callback(x.shape, cut, lambda i: x[i]), "devices": mesh}


def main(folder, out, asked):
    def look(row):
        time.sleep(asked.get("slow", 0))
        if row["step"] == asked.get("stop") and jax.process_index() == 0:
            os.kill(os.getpid(), signal.SIGINT)

    if asked.get("processes", 1) > 1:
        bl.distributed.start(**{name: asked[name] for name in ("address", "processes", "process")})
    jax.config.update("jax_enable_x64", True)
    warnings.filterwarnings("ignore", "solve.resume=True.: the run was started with devices")
    files = bl.checkpoints.OneFile() if asked.get("one_file") else bl.checkpoints.Orbax(seconds=60)
    place = folder / "elsewhere" if asked.get("elsewhere") and jax.process_index() else folder
    solver = bl.MORBiT(0.01, 0.1, upper_rule=optax.adam)
    kept = {"checkpoint": bl.Checkpoint(place, seconds=None, steps=10, files=files), "resume": True}
    options = (
        {"steps": asked.get("steps", 120), "every": 20, "progress": False, "callback": look}
        | kept
        | given(jax.device_count())
    )
    result = bl.solve(solver=solver, y=np.zeros(4), **options)
    if jax.process_index() == 0 and result.status == "finished":
        points = [getattr(result, name) for name in ("last", "best", "random", "average")]
        leaves = jax.tree.leaves([(p.x, dict(p.y), p.weights) for p in points])
        np.save(out, np.concatenate([np.ravel(leaf) for leaf in [*leaves, result.history.validation]]))
    print(result.status, result.steps, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
