"""Writing files whole or not at all, and reading files that are not trusted."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

FilePath = str | os.PathLike[str]

_FLAGS = ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_BINARY")  # where the system has them


@contextlib.contextmanager
def open_regular(path: FilePath, where: str) -> Iterator[BinaryIO]:
    """Opens a regular file for reading. Links are followed, and must lead to a regular file.

    Opening a pipe would wait for ever, and a device may be endless or do something when it is opened. So the file is
    checked before it is opened, and again after, in case it was exchanged in between.

    Args:
        path: of the file.
        where: the beginning of errors, such as "load('a.safetensors')".
    """
    check_path(path, where)
    try:
        _check_regular(os.stat(path), where)
        flags = sum(getattr(os, flag, 0) for flag in _FLAGS)
        with open(os.open(path, os.O_RDONLY | flags), "rb") as file:
            _check_regular(os.fstat(file.fileno()), where)
            yield file
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{where}: there is no such file.") from error
    except PermissionError as error:
        raise PermissionError(f"{where}: there is no permission to read it.") from error
    except OSError as error:
        if error.errno is None:  # our own, already in words
            raise
        raise OSError(f"{where}: it cannot be read ({error.strerror}).") from error


def read_regular(path: FilePath, where: str, most: int) -> bytes:
    """The content of a regular file of at most `most` bytes."""
    with open_regular(path, where) as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{where}: it has more than {most} bytes, which no such file has.")
    return content


def check_component(name: object, what: str) -> None:
    """A ValueError unless a name can be that of a file or folder inside another one.

    >>> check_component("../secrets", "method")
    Traceback (most recent call last):
    ValueError: method '../secrets': it becomes the name of a folder, which needs plain text without slashes.
    """
    plain = isinstance(name, str) and name.isprintable() and not set(name) & set("/\\")
    if not plain or name in ("", ".", ".."):
        raise ValueError(f"{what} {name!r}: it becomes the name of a folder, which needs plain text without slashes.")


def check_path(path: object, where: str) -> None:
    """A TypeError or ValueError unless it can be the path of a file."""
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"{where}: it needs the path of a file, not {type(path).__name__}.")
    if "\0" in os.fsdecode(path):
        raise ValueError(f"{where}: it needs the path of a file, which has no zero characters.")


def shown_path(path: object) -> str:
    """A path for an error message, quoted."""
    return repr(os.fspath(path)) if isinstance(path, os.PathLike) else repr(path)


def _check_regular(found: os.stat_result, where: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(f"{where}: it is a directory, and this takes one file.")
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{where}: it is a pipe, a device or a socket, and this takes a regular file.")


def target_file(path: FilePath, where: str) -> Path:
    """The path for `write_whole`; raises if it cannot be written. Of a link the target is replaced, not the link.

    Args:
        path: of the file.
        where: the beginning of errors, such as "report('page.html')".
    """
    check_path(path, where)
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"{where}: it is a directory, and this writes one file.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{where}: there is no directory {str(target.parent)!r}.")
    # Renaming a new file onto this one would succeed even if it is write-protected.
    if target.exists() and not (target.is_file() and os.access(target, os.W_OK)):
        raise PermissionError(f"{where}: what is there is write-protected or not a regular file.")
    return target


def write_whole(path: Path, content: bytes) -> None:
    """Replaces a file in one step: whatever happens, either the old or the new file is there, complete.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_whole(Path(folder, "a.txt"), b"text")
    ...     [(path.name, path.read_bytes()) for path in Path(folder).iterdir()]
    [('a.txt', b'text')]
    """
    temporary = path.with_name(
        f".bilevel-{secrets.token_hex(8)}.tmp"
    )  # in the same folder, as a rename must not cross disks
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_directory(directory: Path) -> None:
    """Makes a new name survive a power failure, if the system can."""
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
