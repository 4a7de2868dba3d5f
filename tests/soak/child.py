"""One process that makes a run, tells its parent how far it is, and may be killed at any moment.

It is forked from a process that has imported everything and started nothing, which takes a third of the time of a new
one; compiled programs come from the cache.
"""

import os
import random
import time
import traceback
from typing import NamedTuple

from soak import runs


class Orders(NamedTuple):
    """How a child behaves."""

    setup: runs.Setup
    folder: str
    pause: float = 0.02  # at each evaluation, so that there is time to be killed in
    slow_write: float = 0.0  # seconds that a write takes longer
    jumping_clock: bool = False


class Child:
    """A running child, from its parent's side."""

    def __init__(self, orders: Orders):
        self._read: int | None
        self._read, write = os.pipe()
        self.pid, self.lines, self._rest = os.fork(), [], b""
        if self.pid == 0:
            os.close(self._read)
            _live(orders, write)
        os.close(write)
        os.set_blocking(self._read, False)

    def listen(self) -> list[str]:
        """What it has said so far: "writing", "written STATE", "end DIGEST", "failed ...", "warned ..."."""
        if self._read is None:
            return self.lines
        try:
            while data := os.read(self._read, 65536):
                *whole, self._rest = (self._rest + data).split(b"\n")
                self.lines += [line.decode() for line in whole]
        except BlockingIOError:
            pass
        return self.lines

    def said(self, word: str) -> list[str]:
        """What followed a word, each time."""
        return [line.partition(" ")[2] for line in self.listen() if line.split(" ")[0] == word]

    def wait(self, seconds: float) -> int | None:
        """Its exit code, minus a signal's number; None where it still runs then."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.listen()
                os.close(self._read)
                self._read = None
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        return None


def _live(orders: Orders, pipe: int) -> None:
    """What the child does; it never returns."""

    def say(*words: object) -> None:
        os.write(pipe, (" ".join(map(str, words)).replace("\n", " ")[:2000] + "\n").encode())

    code = 1
    try:
        import warnings

        warnings.showwarning = lambda message, *_, **__: say("warned", message)
        warnings.simplefilter("always")
        _slow_down(orders.slow_write, say)
        if orders.jumping_clock:
            _jump()
        found = runs.run(orders.setup, orders.folder, orders.pause, 0.1 if orders.jumping_clock else None)
        say("end", runs.digest(found), found[0].status)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException as error:
        say("failed", type(error).__name__, error, traceback.format_exc()[-800:])
    finally:
        os._exit(code)


def _slow_down(seconds: float, say) -> None:
    """Says when a state is written and when it has its name; and writes in pieces, with time in between."""
    from bilevel._core import files

    replace = os.replace

    class Slow:
        def __init__(self, file):
            self.file = file

        def __getattr__(self, name):
            return getattr(self.file, name)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            self.file.close()

        def write(self, content):
            say("writing")
            quarter = max(1, len(content) // 4)
            for start in range(0, len(content), quarter):
                self.file.write(content[start : start + quarter])
                self.file.flush()
                time.sleep(seconds / 5)

    def named(source, target):
        time.sleep(seconds / 5)
        replace(source, target)
        say("written", target)

    files.open = lambda path, mode: Slow(open(path, mode))  # type: ignore[attr-defined]  # noqa: SIM115
    os.replace = named


def _jump() -> None:
    """The wall clock jumps by up to a month, back and forth."""
    honest = time.time
    time.time = lambda: honest() + random.uniform(-3e6, 3e6)
