"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file in one step: whatever happens, the old file or the new one is there, complete.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a.txt"), b"text")
    ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
    [('a.txt', b'text')]
    """
    temporary = path.with_name(f".bilevel-{secrets.token_hex(8)}.tmp")  # beside it: a rename must not cross disks
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _sync_directory(directory: Path) -> None:
    """Makes a new name outlast a power failure, where the system has a way to."""
    if os.name == "nt":
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
