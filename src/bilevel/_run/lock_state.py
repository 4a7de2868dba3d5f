"""Whether somebody holds a lock, asked without taking it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # there is no such lock on Windows
    fcntl = None  # type: ignore[assignment]

KERNEL_LIST = Path("/proc/locks")


def is_held(path: Path) -> bool | None:
    """Whether a process holds the lock of a file; None = there is no lock, or no way to know.

    The kernel's own list is asked first, which disturbs nobody. It leaves out processes of other containers and hosts,
    so that a lock it does not have is tried, and let go at once.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        return True if _is_listed(os.fstat(descriptor)) else _is_refused(descriptor)
    finally:
        os.close(descriptor)


def _is_listed(status: os.stat_result) -> bool:
    """Whether the kernel lists a lock of this file: `1: FLOCK ADVISORY WRITE 4242 fe:00:1234 0 EOF`."""
    try:
        lines = KERNEL_LIST.read_text().splitlines()
    except (OSError, ValueError):
        return False
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any("FLOCK" in words and "->" not in words and file in words for words in map(str.split, lines))


def _is_refused(descriptor: int) -> bool | None:
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    return False  # closing the file lets it go
