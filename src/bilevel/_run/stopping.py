"""Stops a run from outside: by Ctrl-C, SIGTERM or a deadline. It stops after its compiled call, with its state written.

A second Ctrl-C stops it at once.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bilevel._run.peers import Peers

LOGGER = logging.getLogger("bilevel")
TERMINATED = 128 + signal.SIGTERM  # the exit code, as shells have it


class Noticed:
    """The signals received so far, and the event that they set."""

    def __init__(self) -> None:
        self.halt = threading.Event()
        self.number: int | None = None

    def note(self, number: int, frame: FrameType | None) -> None:
        """The handler. It only records the signal, because it may interrupt anything."""
        if number == signal.SIGINT and self.number is not None:
            raise KeyboardInterrupt
        self.number = number  # before the event: a handler may be interrupted by another one
        self.halt.set()

    def agree(self, peers: Peers) -> None:
        """SIGTERM to one process ends all."""
        if peers.largest(self.number == signal.SIGTERM):
            self.number = signal.SIGTERM

    def exit_if_terminated(self, kept: str = "") -> None:
        """Ends the process if SIGTERM came. Call it when everything is written; `kept` says what was."""
        if self.number == signal.SIGTERM:
            if kept:
                LOGGER.warning("SIGTERM: %s", kept)  # a warning: on stderr also where logging was never set up
            raise SystemExit(TERMINATED)

    def raise_again(self) -> None:
        """Does what the signals would have done without this handler."""
        self.exit_if_terminated()
        if self.number is not None:
            raise KeyboardInterrupt


@contextmanager
def noticed(saves: bool) -> Iterator[Noticed]:
    """A scope in which signals are recorded; SIGTERM only if `saves` says that the process writes its state.

    A handler of the user's own stays as it is, and so does a signal that is ignored. Only the main thread gets signals.
    """
    found = Noticed()
    defaults = {signal.SIGINT: signal.default_int_handler} | ({signal.SIGTERM: signal.SIG_DFL} if saves else {})
    main = threading.current_thread() is threading.main_thread()
    before = {n: signal.getsignal(n) for n, default in defaults.items() if main and signal.getsignal(n) == default}
    try:
        for number in before:
            signal.signal(number, found.note)
        yield found
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Deadline(NamedTuple):
    """A moment on the monotonic clock."""

    seconds: float  # that were given
    ends: float

    @classmethod
    def after(cls, seconds: float) -> Deadline:
        """The moment this many seconds from now."""
        return cls(float(seconds), time.monotonic() + float(seconds))

    def __str__(self) -> str:
        return f"its time limit was reached (seconds={self.seconds:g})"

    def is_within(self, seconds: float) -> bool:
        """Whether it is fewer seconds away than this."""
        return time.monotonic() + seconds >= self.ends
