"""Compiled programs kept from one process to the next, in the user's cache folder; and how long compiling takes.

The folder is $XDG_CACHE_HOME/bilevel/compiled, or ~/.cache/bilevel/compiled, with one folder in it for each kind of
processor, XLA_FLAGS and version of JAX: a home may be shared by machines whose programs would not run on each other.
BILEVEL_COMPILE_CACHE=off turns it off, and BILEVEL_COMPILE_CACHE=<folder> moves it. Where the user has configured
`jax_compilation_cache_dir`, or turned JAX's cache off, nothing is changed; elsewhere JAX is configured while we run,
and has the user's settings again afterwards.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import platform
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import jax
import jax.monitoring
import jaxlib.version
from jax.experimental.compilation_cache import compilation_cache as jax_cache

VARIABLE = "BILEVEL_COMPILE_CACHE"
SETTINGS = {
    "jax_compilation_cache_dir": None,
    "jax_persistent_cache_min_compile_time_secs": 0.0,  # small programs too: many of them add up to seconds
}
MAX_BYTES = 10**9
MIN_AGE = 24 * 3600.0  # seconds without use before a program may be removed

_lock = threading.Lock()
_depth = 0
_users: dict[str, object] = {}  # the user's settings while ours hold


@contextmanager
def compile_cache() -> Iterator[None]:
    """A scope, or as a decorator a function, in which compiled programs are kept; scopes nest, in threads too."""
    global _depth
    with _lock:
        if _depth == 0:
            _enter()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0:
                _leave()


def _enter() -> None:
    settings = jax.config.values
    if settings["jax_compilation_cache_dir"] is not None or not settings["jax_enable_compilation_cache"]:
        return
    folder = _folder()
    if folder is None:
        return
    _prune_once(folder.parent)
    ours = {**SETTINGS, "jax_compilation_cache_dir": str(folder)}
    _users.update({name: settings[name] for name in ours})
    for name, value in ours.items():
        jax.config.update(name, value)
    jax_cache.reset_cache()  # JAX looks at its settings once


def _leave() -> None:
    if not _users:
        return
    for name, value in _users.items():
        jax.config.update(name, value)
    _users.clear()
    jax_cache.reset_cache()


def _folder() -> Path | None:
    chosen = os.environ.get(VARIABLE, "")
    if chosen.lower() == "off":
        return None
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bilevel" / "compiled"
        folder = (Path(chosen).expanduser() if chosen else base) / _fingerprint(os.environ.get("XLA_FLAGS", ""))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # the latter where there is no home
        return None
    return folder if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else None


@functools.cache
def _fingerprint(flags: str) -> str:
    """The facts that a compiled program depends on besides its source."""
    facts = [_processor(), flags, jax.__version__, jaxlib.version.__version__]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()[:16]


def _processor() -> str:
    """Model and instruction sets, as Linux tells them; elsewhere what Python knows."""
    wanted = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    with suppress(OSError):
        first = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        lines = [line for line in first if line.partition(":")[0].strip() in wanted]
        if lines:
            return "\n".join(lines)
    return f"{platform.machine()} {platform.processor()} {platform.node()}"


@functools.cache
def _prune_once(folder: Path) -> None:
    """Removes the programs used longest ago where there are too many bytes of them.

    JAX could do so itself (`jax_compilation_cache_max_size`), with a package that we do not ask for.
    """
    with suppress(OSError):
        prune(folder, MAX_BYTES, MIN_AGE)


def prune(folder: Path, max_bytes: float, min_age: float) -> None:
    """Removes files below a folder, those used longest ago first, until they have at most `max_bytes`."""
    kept = [(max(s.st_atime, s.st_mtime), s.st_size, path) for path in folder.glob("*/*") if (s := path.stat())]
    total, now = sum(size for _, size, _ in kept), time.time()
    for used, size, path in sorted(kept):
        if total <= max_bytes or now - used < min_age:
            return
        path.unlink(missing_ok=True)
        total -= size


# Tracing, lowering and the compiler itself; what is read from a compile cache counts as the last of them.
EVENTS = frozenset(
    f"/jax/core/compile/{name}"
    for name in ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration")
)


class _Thread(threading.local):
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

    def read(self) -> Times:
        """The times now."""
        seconds = self.seconds_before + time.perf_counter() - self.began
        compiling = self.compiled_before + compile_seconds() - self.compiled
        return Times(seconds, compiling, seconds - compiling)


class Times(NamedTuple):
    """Seconds that a run took so far."""

    seconds: float
    compile_seconds: float  # of these
    running: float  # the others
