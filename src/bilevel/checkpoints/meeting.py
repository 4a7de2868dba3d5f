"""Where processes wait for each other in the background.

A barrier of JAX is a sum over the devices, which the run itself uses at the same time; one of its coordination service
cannot be left before its time is over. So this asks that service for values, for a short while again and again: a
process whose run has ended leaves at once, and what failed in one process is known to the others.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import jax

ASK = 0.2  # seconds
FAILED = "failed: "


class Meeting:
    """One process of several that write together; all begin their writes in the same order."""

    def __init__(self, processes: int, rank: int):
        self._processes, self._rank, self._name = processes, rank, ""
        self._left = threading.Event()

    def begin(self, name: str) -> None:
        """What is said from now on is of one write; none of the processes is in another one."""
        if self._name and self._rank == 0 and self._processes > 1:
            self._client().key_value_delete(self._name)
        self._name = f"bilevel/{name}"

    def leave(self) -> None:
        """Waits no longer, here."""
        self._left.set()

    def gather(self, key: str, text: str, seconds: float) -> list[str]:
        """The texts of all processes, in process 0; the others know that it has them."""
        if self._processes == 1:
            return [text]
        own = self._client()
        own.key_value_set(f"{self._name}/{key}/{self._rank}", text)
        end = time.monotonic() + seconds
        if self._rank:
            self._wait(f"{key}/all", end)
            return []
        texts = [self._wait(f"{key}/{rank}", end) for rank in range(self._processes)]
        own.key_value_set(f"{self._name}/{key}/all", "")
        return texts

    def fail(self, error: BaseException) -> None:
        """Tells those that wait that it is in vain."""
        if self._processes > 1 and not self._left.is_set():
            said = f"process {self._rank}: {error}"
            self._client().key_value_set(f"{self._name}/failed", said, allow_overwrite=True)

    def _wait(self, key: str, end: float) -> str:
        while True:
            found = self._ask(key)
            if found is not None:
                return found
            failed = self._ask("failed", 0.001)
            if failed is not None:
                raise OSError(f"it failed in {failed}")
            if self._left.is_set():
                raise ConnectionError("the run has ended, or another process is lost")
            if time.monotonic() > end:
                raise TimeoutError("another process did not write its part in time")

    def _ask(self, key: str, seconds: float = ASK) -> str | None:
        try:
            return self._client().blocking_key_value_get(f"{self._name}/{key}", max(1, round(1000 * seconds)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise ConnectionError(f"another process is lost ({error})") from error

    def _client(self) -> Any:
        from orbax.checkpoint import multihost

        return multihost.get_jax_distributed_client()
