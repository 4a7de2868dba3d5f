"""Files of arrays in the safetensors format, with a JSON document in their metadata.

Nothing in such a file can run code, and any tool that reads safetensors can read the arrays. The metadata holds two
texts: `bilevel`, a JSON document, and `sha256`, the checksum of that document and all arrays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

Arrays = Mapping[str, np.ndarray]
FilePath = str | os.PathLike[str]


class Kind(NamedTuple):
    """What a file is of, and the words that errors name it by."""

    format: str  # what its document says
    reader: str  # the function that the user called
    writer: str  # and the one that writes such files
    version: int = 1  # a higher one is refused


class Content(NamedTuple):
    """What a file holds."""

    document: dict[str, Any]
    arrays: Arrays


def encode(kind: Kind, document: Mapping[str, Any], arrays: Mapping[str, Any]) -> bytes:
    """The bytes of a file; the document needs "made with", the versions of what wrote it."""
    from safetensors.numpy import save

    own = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # bfloat16, float8 and the like are not numpy's own types: their bits are stored, with their names in the document.
    foreign = {name: array.dtype.name for name, array in own.items() if array.dtype.isbuiltin != 1}
    own |= {name: own[name].view(f"u{own[name].dtype.itemsize}") for name in foreign}
    whole = {"format": kind.format, "version": kind.version, **document, "dtypes": foreign}
    text = json.dumps(whole, default=lambda number: number.item())  # a seed may be numpy's
    return save(own, {"bilevel": text, "sha256": _checksum(text, own)})


def read(path: FilePath, kind: Kind) -> Content:
    """The document and the arrays of a file; a ValueError unless they are what was saved."""
    from safetensors.numpy import load

    where, data = f"{kind.reader}({str(path)!r})", _content(path, kind)
    with _damage(where):
        length = int.from_bytes(data[:8], "little")
        if len(data) < 8 or length > len(data) - 8:
            raise ValueError("it ends before its header does")
        metadata = dict(json.loads(data[8 : 8 + length]).get("__metadata__", {}))
    if "bilevel" not in metadata:
        raise ValueError(f"{where}: it is a safetensors file, but not one that {kind.writer} wrote.")
    with _damage(where):
        document = json.loads(metadata["bilevel"])
        format_name, version, library = document["format"], int(document["version"]), document["made with"]["bilevel"]
    if format_name == kind.format and version > kind.version:
        raise ValueError(f"{where}: bilevel {library} wrote it in a newer format; upgrade bilevel to load it.")
    with _damage(where):
        arrays = load(data)
        if format_name != kind.format or version < 1 or _checksum(metadata["bilevel"], arrays) != metadata["sha256"]:
            raise ValueError("its checksum does not match")
        own = {name: arrays[name].view(jnp.dtype(dtype)) for name, dtype in document["dtypes"].items()}
    return Content(document, arrays | own)


def _checksum(text: str, arrays: Arrays) -> str:
    checksum = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        checksum.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        checksum.update(array.reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()


@contextlib.contextmanager
def _damage(where: str) -> Iterator[None]:
    """Reports any error inside the block as damage to the file."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{where}: it is cut short, damaged or not a safetensors file ({error}).") from error


def _content(path: FilePath, kind: Kind) -> bytes:
    if os.path.isdir(path):
        raise IsADirectoryError(f"{kind.reader}({str(path)!r}): it is a directory, and this takes one file.")
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"{kind.reader}({str(path)!r}): there is no such file.") from None
