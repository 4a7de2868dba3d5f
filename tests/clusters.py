"""Starts jobs of two processes by what sites have: `mpirun`, and a Slurm of two nodes on this machine.

All of it listens on loopback, and is stopped by who started it.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

JOB = Path(__file__).parent / "_run" / "engines" / "job.py"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def started(command, **environment):
    """A process in a group of its own, so that all of it can be ended."""
    own = os.environ | {"JAX_NUM_CPU_DEVICES": "1"} | environment
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(list(map(str, command)), env=own, start_new_session=True, **pipes)


def wait_for(condition, seconds, what):
    """Until something is true, or a clear failure."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.05)


def note(**record):
    """A line of what was measured, into the file that BILEVEL_RECORDS names: benchmarks/broken_jobs.py reads it."""
    print(record)
    if "BILEVEL_RECORDS" in os.environ:
        with Path(os.environ["BILEVEL_RECORDS"]).open("a") as file:
            file.write(json.dumps(record) + "\n")


class Mpirun:
    """Open MPI on this machine."""

    name = "mpirun"
    needs = ("mpirun",)

    def start(self, folder, script=JOB, **environment):
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        command = ["mpirun", *root, "--oversubscribe", "--bind-to", "none", "-n", "2", sys.executable, script, folder]
        return started(command, **environment)


class Slurm:
    """A controller and two nodes, on this machine, of a user's own: nothing of the system's configuration is used."""

    name = "srun"
    needs = ("srun", "slurmctld", "slurmd", "munged")

    def __init__(self, folder):
        self.folder, self.daemons = folder, []

    def __enter__(self):
        for name in ("state", "spool-n1", "spool-n2"):
            (self.folder / name).mkdir()
        key, self.socket = self.folder / "munge.key", self.folder / "munge.socket"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._daemon("munged", "--foreground", "--force", f"--socket={self.socket}", f"--key-file={key}",
                     f"--pid-file={self.folder / 'munge.pid'}", f"--seed-file={self.folder / 'munge.seed'}",
                     f"--log-file={self.folder / 'munge.log'}")  # fmt: skip
        wait_for(self.socket.exists, 20, "munged")
        self.configuration = self.folder / "slurm.conf"
        self.configuration.write_text(self._configured())
        self._daemon("slurmctld", "-D", "-f", self.configuration)
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node, "-f", self.configuration)
        wait_for(self._is_idle, 60, "two idle nodes of Slurm")
        return self

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()

    def start(self, folder, script=JOB, **environment):
        environment |= {"SLURM_CONF": str(self.configuration), "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{free_port()}"}
        command = ["srun", "-N", "2", "-n", "2", "--kill-on-bad-exit=1", sys.executable, script, folder]
        return started(command, **environment)

    def _daemon(self, *command):
        path = os.environ["PATH"] + ":/usr/sbin"
        with (self.folder / f"{len(self.daemons)}-{command[0]}.log").open("w") as log:
            own = {"stdout": log, "stderr": subprocess.STDOUT, "env": os.environ | {"PATH": path}}
            self.daemons.append(subprocess.Popen(list(map(str, command)), start_new_session=True, **own))

    def _is_idle(self):
        asked = ["sinfo", "-h", "-o", "%T %D"]
        found = subprocess.run(
            asked, env=os.environ | {"SLURM_CONF": str(self.configuration)}, capture_output=True, text=True, check=False
        )
        return found.stdout.split() == ["idle", "2"]

    def _configured(self):
        host = socket.gethostname()
        ports = [free_port() for _ in range(3)]
        nodes = "\n".join(
            f"NodeName=n{i} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[i]} CPUs=2 State=UNKNOWN" for i in (1, 2)
        )
        return f"""\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={os.environ.get("USER") or "root"}
SlurmctldPort={ports[0]}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={self.socket}
StateSaveLocation={self.folder}/state
SlurmdSpoolDir={self.folder}/spool-%n
SlurmctldPidFile={self.folder}/slurmctld.pid
SlurmdPidFile={self.folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
ReturnToService=2
SlurmdTimeout=20
KillWait=5
{nodes}
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
"""


def missing(cluster):
    """Programs that are not installed."""
    return [name for name in cluster.needs if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")]
