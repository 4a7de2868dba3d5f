"""What a step costs on many hosts, from what it costs here: the table at the end of docs/scaling.md.

    python benchmarks/cost_model.py            measures (some minutes, one thread a process), and prints
    python benchmarks/cost_model.py page       and puts it on the page

FashionMNIST-shaped tasks, MORBiT, every task in every step. Measured here: a step of 16 and of 64 tasks in one process,
which gives the time of a task and of what does not depend on tasks; sums over two processes of several sizes, many in
one compiled call as in a run; bytes of a task. Predicted: the longest that a host computes, and then a sum over all
hosts of the direction of x and of the losses of all tasks, as a ring of H hosts sends it: 2 (H - 1) messages one after
the other, of 1 / H of the bytes each. Every message is drawn from those that were measured, and a host waits for its
neighbour, so that the slowest link holds up all of them. The prediction for two processes is held against a run on two.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
from devices import finish, free_port, ready, start
from page import put

SIZES = (1 << 10, 1 << 15, 1 << 18, 1 << 20, 1 << 22)  # bytes of a sum
SUMS, ROUNDS = 20, 30  # sums in a call, and calls
STEPS = 20
TASKS, HOSTS = (10**3, 10**4, 10**5, 10**6, 10**7), (1, 2, 8, 32, 128, 1024)


# ------------------------------------------------------------------ in a process of its own


def steps(tasks: str, *where: str) -> None:
    """Milliseconds a step, several runs, and the bytes of x, of a task's rows and of its state; as JSON."""
    import bilevel as bl

    if where:
        bl.distributed.start(where[0], 2, int(where[1]), timeout=120, heartbeat=100)
    import jax

    made = ready("fashion", int(tasks), 100)
    given: dict[str, Any] = {"x": made.x, "progress": False, "every": 10**9, "steps": STEPS}
    runs = [bl.solve(made.problem, bl.MORBiT(0.05, 0.01), **given) for _ in range(4)]
    taken = [1e3 * (result.seconds - result.compile_seconds) / STEPS for result in runs]
    bytes_of = lambda tree: sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree))  # noqa: E731
    group = made.problem.groups[0]
    rows = bytes_of((group.train, group.validation)) / int(tasks)
    # y, v, and the three iterates that are kept beside the last: y of each.
    state = 5 * bytes_of(dict(runs[0].y)) / int(tasks)
    print(json.dumps({"ms": taken[1:], "x": bytes_of(made.x), "rows": rows, "state": state}))


def sums(address: str, rank: str) -> None:
    """Milliseconds of a sum over two processes, for each size; as JSON."""
    import bilevel as bl

    bl.distributed.start(address, 2, int(rank), timeout=120, heartbeat=100)
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding
    from jax.sharding import PartitionSpec as Spec

    mesh = jax.make_mesh((2,), ("t",), axis_types=(AxisType.Auto,))
    place = NamedSharding(mesh, Spec("t"))

    def many(a: Any) -> Any:
        once = lambda _, a: jax.lax.pcast(jax.lax.psum(a, "t") / 2, "t", to="varying")  # noqa: E731
        return jax.lax.fori_loop(0, SUMS, once, a)

    call = jax.jit(jax.shard_map(many, mesh=mesh, in_specs=Spec("t"), out_specs=Spec("t")))
    found = {}
    for size in SIZES:
        host = np.ones((2, size // 4), np.float32)
        a = jax.make_array_from_callback(host.shape, place, lambda index, host=host: jnp.asarray(host[index]))
        jax.block_until_ready(call(a))
        found[size] = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            jax.block_until_ready(call(a))
            found[size].append(1e3 * (time.perf_counter() - began) / SUMS)
    print(json.dumps(found))


# ------------------------------------------------------------------ the model


def both(*arguments: str) -> Any:
    """What process 0 of two prints."""
    address = f"127.0.0.1:{free_port()}"
    pair = [start(*arguments, address, str(rank), script=__file__) for rank in range(2)]
    first, _ = [finish(process) for process in pair]
    return json.loads(first.splitlines()[-1])


def message(taken: dict[str, list[float]]) -> tuple[float, float, np.ndarray]:
    """Of a message between two hosts: ms, ms a byte, and how many times as long as that each really took.

    A sum over two is two messages of half of the bytes.
    """
    sizes = np.array([float(size) for size in taken])
    typical = np.array([np.median(own) for own in taken.values()])
    # Relative errors count: the sizes span three orders.
    slope, least = np.polyfit(sizes, typical, 1, w=1 / typical)
    least = max(least, typical.min() / 2)
    spread = np.concatenate([np.array(own) / (least + slope * float(size)) for size, own in taken.items()])
    return least / 2, slope, spread


def ring(hosts: int, size: float, least: float, slope: float, spread: np.ndarray, rounds: int = 20) -> float:
    """ms of a sum of so many bytes over hosts in a ring, on average."""
    if hosts == 1:
        return 0.0
    draws, ends = np.random.default_rng(0), []
    for _ in range(rounds):
        at = np.zeros(hosts)
        for _ in range(2 * (hosts - 1)):
            taken = (least + slope * size / hosts) * draws.choice(spread, hosts)
            at = np.maximum(at, np.roll(at, 1)) + taken
        ends.append(at.max())
    return float(np.mean(ends))


def report() -> str:
    few, many = (json.loads(finish(start("steps", n, script=__file__)).splitlines()[-1]) for n in ("16", "64"))
    taken, two = both("sums"), both("steps", "64")
    each = (np.median(many["ms"]) - np.median(few["ms"])) / 48
    fixed = max(0.0, np.median(few["ms"]) - 16 * each)
    least, slope, spread = message(taken)
    size = lambda n: many["x"] + 4.0 * n  # noqa: E731

    def step(n: int, hosts: int) -> float:
        return float(fixed + each * -(-n // hosts) + ring(hosts, size(n), least, slope, spread))

    measured, predicted = np.median(two["ms"]), step(64, 2)
    lines = [
        f"Measured: {each:.3f} ms a task and {fixed:.2f} ms a step in one process of one thread; a message between two "
        f"processes of a host {least:.2f} ms and {slope * 1e6:.2f} ms a MB; x has {many['x'] / 1e3:.0f} kB, the rows "
        f"of a task {many['rows'] / 1e3:.0f} kB, its y and what is kept of it {many['state'] / 1e3:.1f} kB. A step of "
        f"64 tasks on two processes: predicted {predicted:.1f} ms, measured {measured:.1f} ms.",
        "",
        "Milliseconds a step, of these the sum, and memory of a host's devices:",
        "",
        "| tasks | " + " | ".join(f"{h} host{'s' * (h > 1)}" for h in HOSTS) + " |",
        "|---|" + "---|" * len(HOSTS),
    ]
    for n in TASKS:
        cells = []
        for h in HOSTS:
            if n < h:
                cells.append("-")
                continue
            memory = (-(-n // h) * (many["rows"] + many["state"]) + 5 * (many["x"] + 4 * n)) / 1e9
            total = ring(h, size(n), least, slope, spread)
            cells.append(f"{step(n, h):,.0f}, {total:,.0f}; {memory:,.1f} GB")
        lines.append(f"| 10^{round(np.log10(n))} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or ["report"]
    if what in ("steps", "sums"):
        {"steps": steps, "sums": sums}[what](*rest)
    elif what == "page":
        put("cost model", report())
    else:
        print(report())
