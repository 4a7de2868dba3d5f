"""Kills runs, goes on with them, and compares the end with that of the run that nobody disturbed."""

import argparse
import collections
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

import bilevel._run.solving
import bilevel.solvers  # noqa: F401
from bilevel._core import array_files
from soak import runs
from soak.child import Child, Orders

STATE = re.compile(r"state-(\d+)\.safetensors")
LONGEST = 180.0  # seconds that one child may take
CAUSES = ("kill -9", "kill -9 in a write", "SIGTERM")


class Tally(collections.Counter):
    """What was tried and what was lost, for one run."""

    def add(self, other: "Tally") -> None:
        """Both together."""
        self.update(other)


COLUMNS = (*CAUSES, "in a write", "unreadable", "lost", "finished", "different", "failed")


class Work(NamedTuple):
    """What a worker does: so many disturbances of one kind of run."""

    name: str
    setup: runs.Setup
    reference: str
    disturbances: int


def states(folder: str) -> list[Path]:
    """All states under a folder."""
    return sorted(path for path in Path(folder).rglob("state-*") if STATE.fullmatch(path.name))


def examine(folder: str, written: list[str], tally: Tally) -> None:
    """After a death: every state must be readable, and the newest as new as the last one that got its name."""
    tally["in a write"] += any(Path(folder).rglob(".bilevel-*.tmp"))
    kind = array_files.Kind("bilevel.state", "soak", "solve", 10**6)
    newest: dict[Path, int] = {}
    for path in states(folder):
        try:
            array_files.read(path, kind)
            newest[path.parent] = int(STATE.fullmatch(path.name)[1])  # type: ignore[index]
        except (ValueError, OSError) as error:
            tally["unreadable"] += 1
            print(f"    unreadable: {error}", flush=True)
    for target in map(Path, written):
        found = STATE.fullmatch(target.name)
        if (
            found
            and int(found[1]) > newest.get(target.parent, -1)
            and not (target.parent / "result.safetensors").exists()
        ):
            tally["lost"] += 1
            print(f"    lost: {target.name}, the newest is {newest.get(target.parent)}", flush=True)
            return


def disturb(child: Child, cause: str, chance: random.Random, usual: float) -> bool:
    """Waits for the moment and strikes; False where the child ended first."""
    # Counted in writes rather than seconds, as other work on the machine changes how long anything takes; 0 is before
    # the first one, while it starts, compiles and reads.
    due = chance.randint(1, 4) if "write" in cause else chance.randint(0, 8)
    until = time.monotonic() + LONGEST
    while len(child.said("writing")) < due and not child.said("end") and time.monotonic() < until:
        time.sleep(0.002)
    time.sleep(chance.uniform(0, 0.2 if due else usual))
    if child.said("end") or child.said("failed"):
        return False
    os.kill(child.pid, signal.SIGTERM if cause == "SIGTERM" else signal.SIGKILL)
    return True


def work(item: Work, until: float, usual: float, chance: random.Random) -> Tally:
    """Disturbs runs of one kind, several times each, and lets each finish at last."""
    tally, left = Tally(), item.disturbances
    while left > 0 and time.monotonic() < until:
        folder = tempfile.mkdtemp(prefix="bilevel-soak-")
        for _ in range(min(left, chance.randint(2, 6))):
            cause = chance.choices(CAUSES, (4, 5, 1))[0]
            child = Child(Orders(item.setup, folder, slow_write=0.2 if "write" in cause else 0.0))
            struck = disturb(child, cause, chance, usual)
            code = child.wait(LONGEST)
            tally["failed"] += code not in ((-9,) if struck and "kill" in cause else (0, 143, -15))
            if child.said("failed"):
                print(f"    {item.name}: {child.said('failed')[-1]}", flush=True)
            if struck:
                tally[cause] += 1
                left -= 1
            examine(folder, child.said("written"), tally)
            if child.said("end"):
                break
        finish(item, folder, tally)
        shutil.rmtree(folder, ignore_errors=True)
    return tally


def finish(item: Work, folder: str, tally: Tally) -> None:
    """Lets a run come to its end, and compares it."""
    child = Child(Orders(item.setup, folder, pause=0.0))
    code = child.wait(LONGEST)
    ends = child.said("end")
    tally["finished"] += bool(ends)
    tally["different"] += bool(ends) and ends[-1] != item.reference
    if not ends:
        tally["failed"] += 1
        print(f"    {item.name}: it did not end (exit code {code}): {child.said('failed')}", flush=True)


def reference(setup: runs.Setup, **more: object) -> tuple[str, float, int]:
    """An undisturbed run: its end, how long it takes, and the bytes of a state."""
    folder = tempfile.mkdtemp(prefix="bilevel-soak-")
    try:
        began = time.monotonic()
        child = Child(Orders(setup, folder, **more))  # type: ignore[arg-type]
        child.wait(LONGEST)
        if not child.said("end"):
            sys.exit(f"An undisturbed run does not end: {child.said('failed')}")
        size = max((path.stat().st_size for path in states(folder)), default=0)
        return child.said("end")[-1], time.monotonic() - began, size
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------ a disk that is full, a clock that jumps


def full_disk() -> str:
    """A run in a folder that cannot hold its state: it must end as if nothing had happened, and say so."""
    setup = runs.SETUPS["MORBiT"]
    place = tempfile.mkdtemp(prefix="bilevel-soak-disk-")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "bilevel-soak", place], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        os.rmdir(place)
        return f"skipped: a small disk cannot be mounted ({mounted.stderr.strip()})"
    try:
        end, _, _ = reference(setup)
        child = Child(Orders(setup, f"{place}/run"))
        child.wait(LONGEST)
        same, warned = child.said("end") == [end], len(child.said("warned"))
        said = f"the run {'ended, the same' if same else f'DIFFERS: {child.lines[-3:]}'}, with {warned} warnings"
        grown = (
            subprocess.run(["mount", "-o", "remount,size=8m", place], capture_output=True, check=False).returncode == 0
        )
        again = Child(Orders(setup, f"{place}/run"))
        again.wait(LONGEST)
        return f"{said}; with room again {'the same' if grown and again.said('end') == [end] else 'DIFFERENT'}"
    finally:
        subprocess.run(["umount", "-l", place], check=False)
        os.rmdir(place)


def jumping_clock() -> str:
    """Checkpoints by time while the wall clock jumps by weeks: as many as ever, and the same end."""
    setup = runs.SETUPS["MORBiT"]
    end, _, _ = reference(setup)
    folder = tempfile.mkdtemp(prefix="bilevel-soak-")
    try:
        child = Child(Orders(setup, folder, pause=0.05, jumping_clock=True))
        child.wait(LONGEST)
        same = child.said("end") == [end]
        count = sum("state-" in target for target in child.said("written"))
        return f"{'the same end' if same else f'DIFFERENT: {child.lines[-2:]}'}, {count} states written every 0.1 s"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------ the campaign


def main() -> int:
    """Prints the table; the exit code says whether anything was lost."""
    parser = argparse.ArgumentParser(prog="script/soak", description=__doc__)
    parser.add_argument("kills", type=int, nargs="?", default=200, help="disturbances in all")
    parser.add_argument("seconds", type=float, nargs="?", default=1800, help="after which nothing new is begun")
    parser.add_argument("--only", default="", help="runs whose names have this text")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    chosen = {name: setup for name, setup in runs.SETUPS.items() if options.only in name}
    share = -(-options.kills // len(chosen))
    total, queue, lock = Tally(), collections.deque(), threading.Lock()
    print(f"{'run':<18}{'state':>9}" + "".join(f"{name:>20}" if "kill" in name else f"{name:>12}" for name in COLUMNS))
    for name, setup in chosen.items():
        end, usual, size = reference(setup)  # one after the other: each compiles what its kind needs
        again, usual, _ = reference(setup)
        if again != end:
            print(f"{name}: two undisturbed runs differ", flush=True)
            total["different"] += 1
        queue.append((Work(name, setup, end, share), usual, size))

    # Forking in a thread is safe here: this process runs nothing of JAX.
    def serve(number: int) -> None:
        while queue:
            try:
                item, usual, size = queue.popleft()
            except IndexError:
                return
            tally = work(item, until, usual, random.Random(f"{options.seed} {item.name}"))
            cells = "".join(f"{tally[c]:>20}" if "kill" in c else f"{tally[c]:>12}" for c in COLUMNS)
            with lock:
                print(f"{item.name:<18}{size / 1e3:>6.0f} kB{cells}", flush=True)
                total.add(tally)

    workers = [threading.Thread(target=serve, args=(i,)) for i in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"{'all':<27}" + "".join(f"{total[c]:>20}" if "kill" in c else f"{total[c]:>12}" for c in COLUMNS))
    disk, clock = full_disk(), jumping_clock()
    print(f"disk full: {disk}\nclock jumps: {clock}")
    lost = sum(total[name] for name in ("unreadable", "lost", "different", "failed"))
    return int(bool(lost) or "DIFF" in disk + clock)


if __name__ == "__main__":
    sys.exit(main())
