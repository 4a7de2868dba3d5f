"""How long JAX has been compiling, told apart from running."""

from __future__ import annotations

import dataclasses
import threading
import time

import jax.monitoring

# Tracing, lowering and the compiler itself; what is read from a compile cache counts as the last of them.
EVENTS = frozenset(
    f"/jax/core/compile/{name}"
    for name in ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration")
)


class _Thread(threading.local):
    """What one thread has compiled."""

    def __init__(self) -> None:
        self.total = 0.0
        self.spans: list[tuple[float, float]] = []  # start and length; a longer span that ends later may contain them


_thread = _Thread()


def _listen(event: str, duration_secs: float, **_: object) -> None:
    if event not in EVENTS:
        return
    start = time.perf_counter() - duration_secs
    # A function traced inside another one ends first and is part of the other's time: it must not count twice.
    while _thread.spans and _thread.spans[-1][0] >= start:
        _thread.total -= _thread.spans.pop()[1]
    _thread.spans.append((start, duration_secs))
    _thread.total += duration_secs


jax.monitoring.register_event_duration_secs_listener(_listen)  # a module is imported once, so this happens once


def compile_seconds() -> float:
    """Seconds that this thread has spent compiling; not to be asked for while it does."""
    _thread.spans.clear()
    return _thread.total


@dataclasses.dataclass(frozen=True)
class Clock:
    """The time of a run, from when this thread took it up; `seconds_before` and `compiled_before` are from earlier."""

    seconds_before: float = 0.0
    compiled_before: float = 0.0
    began: float = dataclasses.field(default_factory=time.perf_counter)
    compiled: float = dataclasses.field(default_factory=compile_seconds)

    @property
    def seconds(self) -> float:
        """Seconds of the run so far."""
        return self.seconds_before + time.perf_counter() - self.began

    @property
    def compile_seconds(self) -> float:
        """Seconds of these that went into compiling."""
        return self.compiled_before + compile_seconds() - self.compiled

    @property
    def running_seconds(self) -> float:
        """The others: what was not compiling."""
        return self.seconds - self.compile_seconds
