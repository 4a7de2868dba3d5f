"""Which process of how many this is, by what started it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

PORTS = range(61440, 65536)  # one of them is taken by the number of the job, as JAX does


class Launch(NamedTuple):
    """What is known of the processes of a job; None = not known."""

    by: str | None = None  # who started them
    processes: int | None = None
    process: int | None = None
    one_host: bool = False
    job: int = 0  # a number that other jobs on the host hardly have

    @property
    def address(self) -> str | None:
        """Where process 0 is found, where all are on one host."""
        return f"127.0.0.1:{PORTS[self.job % len(PORTS)]}" if self.one_host else None


def launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """What `mpirun`, `srun` or an Indexed Job of Kubernetes says; nothing where there is none of them.

    >>> launch({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}).process
    1
    """
    whole = lambda name: int(environment[name]) if environment.get(name, "").isdigit() else None  # noqa: E731
    if "OMPI_COMM_WORLD_SIZE" in environment:  # Open MPI 4 and 5; first, as mpirun may run inside a job of Slurm
        count = whole("OMPI_COMM_WORLD_SIZE")
        name = environment.get("PMIX_NAMESPACE", "")
        job = int.from_bytes(name.encode(), "big") % 65521
        alone = whole("OMPI_COMM_WORLD_LOCAL_SIZE") == count
        return Launch("mpirun", count, whole("OMPI_COMM_WORLD_RANK"), alone, job)
    if "SLURM_PROCID" in environment and "SLURM_STEP_NUM_TASKS" in environment:
        job = 8 * (whole("SLURM_JOB_ID") or 0) + (whole("SLURM_STEP_ID") or 0)
        count, nodes = whole("SLURM_STEP_NUM_TASKS"), whole("SLURM_STEP_NUM_NODES")
        return Launch("srun", count, whole("SLURM_PROCID"), nodes == 1, job)
    if "JOB_COMPLETION_INDEX" in environment:
        return Launch("an Indexed Job", None, whole("JOB_COMPLETION_INDEX"))
    return Launch()
