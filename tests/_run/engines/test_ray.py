"""Ray, with two nodes on this machine: one run over both, begun again after a loss; many runs as tasks."""

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import bilevel as bl
from clusters import JOB, note, wait_for
from kept_runs import NOISY, X, Y

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),  # Ray starts its daemons by it
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'bilevel[ray]'")

MEMORY = 100_000_000  # bytes of the object store of a node


@pytest.fixture(scope="module")
def nodes():
    """Two nodes, which listen on loopback."""
    from ray.cluster_utils import Cluster

    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "JAX_NUM_CPU_DEVICES": "1"}
    # Not 127.0.0.1, which Ray takes for the address of this machine in its network.
    node = {"num_cpus": 2, "object_store_memory": MEMORY}
    head = node | {"node_ip_address": "127.0.0.2", "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        cluster.add_node(**node, node_ip_address="127.0.0.3")
        path = os.pathsep.join([str(JOB.parent), str(JOB.parents[2]), *sys.path])
        ray.init(address=cluster.address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": path}})
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def train(folder, slow):
    """A function for the processes of Ray."""

    def call():
        os.environ["JOB_SLOW"] = str(slow)
        import job

        job.jax.config.update("jax_enable_x64", True)
        rank = job.jax.process_index()
        (Path(folder) / f"pid-{rank}").write_text(str(os.getpid()))
        result = job.train(Path(folder))
        return np.concatenate([np.ravel(result.x), result.weights])

    return call


@pytest.fixture(scope="module")
def unbroken(nodes, tmp_path_factory):
    from bilevel._run.engines.ray import run

    return run(train(tmp_path_factory.mktemp("unbroken"), 0), processes=2, timeout=120, heartbeat=20)


@pytest.mark.parametrize("time_", range(int(os.environ.get("BILEVEL_TIMES", 1))))
@pytest.mark.parametrize(
    ("number", "rank"),
    [(signal.SIGKILL, 1), (signal.SIGKILL, 0), (signal.SIGSTOP, 1), (signal.SIGTERM, 1)],
    ids=["SIGKILL of a worker", "SIGKILL of process 0", "SIGSTOP of a worker", "SIGTERM of a worker"],
)
def test_a_run_that_loses_a_process_is_begun_again_and_ends_the_same(nodes, unbroken, number, rank, time_, tmp_path):
    from bilevel._run.engines.ray import run

    times = []

    def strike():
        wait_for(lambda: len(list((tmp_path / "run").glob("state-*"))) >= 2, 240, "a second state")
        pid = int((tmp_path / f"pid-{rank}").read_text())
        os.kill(pid, number)
        began = time.monotonic()
        wait_for(lambda: int((tmp_path / f"pid-{rank}").read_text()) != pid, 120, "new processes")
        times.append(time.monotonic() - began)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    striking = threading.Thread(target=strike)
    striking.start()
    result = run(train(tmp_path, 0.3), processes=2, timeout=120, heartbeat=10)
    striking.join()
    assert np.array_equal(result, unbroken)
    assert times, "it was not begun again"
    note(engine="Ray", signal=number.name, process=rank, seconds=times[0])


def test_an_error_of_the_function_is_raised_and_not_tried_again(nodes, tmp_path):
    from bilevel._run.engines.ray import run

    def fails():
        with (tmp_path / "calls").open("a") as file:
            file.write("x")
        raise ValueError("no such rows")

    with pytest.raises(ValueError, match="no such rows"):
        run(fails, processes=1)
    assert (tmp_path / "calls").read_text() == "x"


def test_seeds_are_tasks_and_give_what_they_give_here(nodes, tmp_path):
    from bilevel._run.engines import ray as engine

    given = {"x": X, "y": Y, "steps": 60, "every": 20}
    there = engine.seeds(NOISY, bl.MORBiT(0.1, 0.5), seeds=2, checkpoint=tmp_path, **given)
    assert sorted(place.name for place in tmp_path.iterdir()) == ["seed-0", "seed-1"]
    here = bl.solve(NOISY, bl.MORBiT(0.1, 0.5), seeds=2, progress=False, **given)
    for one, other in zip(there, here, strict=True):
        assert one.seed == other.seed
        assert np.allclose(one.x, other.x, rtol=1e-12)
        assert np.allclose(one.weights, other.weights, rtol=1e-12)


def test_a_comparison_is_complete_though_a_worker_is_killed(nodes, tmp_path):
    from bilevel._run.engines import ray as engine

    given = {"solvers": ["SOBA", "TTSA"], "calls": 2000, "seeds": 3, "grid": bl.Grid((0.1,), (0.1,), (0.1,))}
    here = bl.compare("noisy-ball", **given, progress=False)
    with engine.tasks():
        began = time.monotonic()
        killing = threading.Timer(1, _kill_a_worker)
        killing.start()
        there = bl.compare("noisy-ball", **given, progress=False)
        print(f"a comparison as tasks of Ray, one worker killed: {time.monotonic() - began:.0f} s")
    assert [c.name for c in there.candidates] == [c.name for c in here.candidates]
    for one, other in zip(there.candidates, here.candidates, strict=True):
        assert sorted(one.runs) == sorted(other.runs) == [0, 1, 2]
        assert np.isclose(one.worst, other.worst, rtol=1e-9)


def _kill_a_worker():
    """One of those that the nodes of this test have started."""
    import psutil

    workers = [p for p in psutil.Process().children(recursive=True) if "ray::make" in " ".join(p.cmdline())]
    if workers:
        workers[0].kill()
