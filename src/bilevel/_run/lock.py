"""A lock, so that one process at a time works on a run's folder. The kernel frees it when its owner ends.

Other processes can ask whether somebody holds it without taking it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import time
from pathlib import Path

from bilevel._core.types import Json

try:
    import fcntl
except ImportError:  # there is no such lock on Windows
    fcntl = None  # type: ignore[assignment]

KERNEL_LIST = Path("/proc/locks")
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP)  # what some network file systems say


class Lock:
    """A lock, held from its creation until `release`.

    The file stays: if it were removed, two processes could each lock a file of that name.
    """

    def __init__(self, path: Path):
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        self._descriptor = os.open(path, flags, 0o644)  # not inherited by programs that are started
        try:
            self._take()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _take(self) -> None:
        if fcntl is None:
            return
        try:
            # A second descriptor of the same process is refused too, so that threads cannot share a folder either.
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(errno.EWOULDBLOCK, self._owner()) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        owner = {"pid": os.getpid(), "host": platform.node(), "time": time.time()}
        with contextlib.suppress(OSError):  # a full disk; the words matter less than the lock
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, json.dumps(owner).encode(), 0)

    def _owner(self) -> str:
        owner: dict[str, Json] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
            owner = dict(json.loads(os.pread(self._descriptor, 1000, 0)))
        if owner.get("pid") == os.getpid() and owner.get("host") == platform.node():
            return "this process works on it already"
        known = f"process {owner['pid']} on {owner['host']}" if {"pid", "host"} <= set(owner) else "another process"
        return f"{known} works on it"

    def release(self) -> None:
        os.close(self._descriptor)


def is_held(path: Path) -> bool | None:
    """Whether a process holds the lock of a file; None = there is no lock, or no way to know.

    The kernel's list of locks is read first, which disturbs nobody. The list leaves out processes of other containers
    and hosts. A lock that is not in the list is therefore tried, and freed at once.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    try:
        if _is_listed(os.fstat(descriptor)):
            return True
        if fcntl is None:
            return None
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError as error:
        return True if error.errno in (errno.EWOULDBLOCK, errno.EACCES) else None
    finally:
        os.close(descriptor)  # which lets it go


def _is_listed(status: os.stat_result) -> bool:
    """Whether the kernel lists a lock of this file: `1: FLOCK ADVISORY WRITE 4242 fe:00:1234 0 EOF`."""
    try:
        lines = KERNEL_LIST.read_text().splitlines()
    except (OSError, ValueError):
        return False
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    return any("FLOCK" in words and "->" not in words and file in words for words in map(str.split, lines))
