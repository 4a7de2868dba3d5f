"""Files of arrays in the safetensors format, with a JSON document in their metadata.

Nothing in such a file can run code, and any tool that reads safetensors can read the arrays. The metadata holds two
texts: `bilevel`, a JSON document, and `sha256`, the checksum of that document and all arrays.

A file is not trusted. Its header is checked against the file's real length before memory is taken for the arrays, so
that nothing larger than the file is ever allocated; names in it are only ever names of arrays, never of files. A
checksum finds damage, not malice: whoever writes a file can write its checksum. So the content of the document is
checked too, by `documents.Fields`.

The safetensors library makes most of these checks of a header itself, but only on a whole file in memory that it copies
once more (`deserialize`), or on a file that it maps by path (`safe_open`) and that kills this process by a signal if
another one cuts it short; so the header is read here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from typing import BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from bilevel._core import documents
from bilevel._core.documents import shown
from bilevel._core.files import FilePath, open_regular, shown_path
from bilevel._core.types import Json

Arrays = Mapping[str, np.ndarray]

LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors library

# The names of types in a header. Types that numpy does not have are kept as bits, see `encode`.
_TYPES = {
    **{f"F{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    **{f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind in "IU" for size in (1, 2, 4, 8)},
    "BOOL": np.dtype(bool),
    "C64": np.dtype("<c8"),
}
# Types that JAX adds, by name: bfloat16, float8_e4m3fn, int4, ...
_ADDED = {
    name: np.dtype(kind)
    for name, kind in vars(ml_dtypes).items()
    if isinstance(kind, type) and issubclass(kind, np.generic)
}


class Kind(NamedTuple):
    """A kind of file, and the words for it in errors."""

    format: str  # the name in its document
    reader: str  # the function that the user called
    writer: str  # the function that writes such files
    version: int = 1  # a higher one is refused


class Content(NamedTuple):
    """The content of a file."""

    document: dict[str, Json]
    arrays: Arrays


def encode(kind: Kind, document: Mapping[str, Json], arrays: Mapping[str, Json]) -> bytes:
    """The bytes of a file. The document needs "made with", the versions of the software that writes it."""
    from safetensors.numpy import save

    own = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    # Types such as bfloat16 are not numpy's own: their bits are stored, and their names are in the document.
    foreign = {name: array.dtype.name for name, array in own.items() if array.dtype.isbuiltin != 1}
    own |= {name: own[name].view(f"u{own[name].dtype.itemsize}") for name in foreign}
    whole = {"format": kind.format, "version": kind.version, **document, "dtypes": foreign}
    text = json.dumps(whole, default=lambda number: number.item())  # a seed may be numpy's
    return save(own, {"bilevel": text, "sha256": _checksum(text, own)})


def read(path: FilePath, kind: Kind) -> Content:
    """The document and the arrays of a file; a ValueError unless they are what was saved."""
    where = f"{kind.reader}({shown_path(path)})"
    with open_regular(path, where) as file:
        with _damage(where):
            header = _Header.read(file)
            metadata = header.metadata
        if "bilevel" not in metadata:
            raise ValueError(f"{where}: it is a safetensors file, but not one that {kind.writer} wrote.")
        with _damage(where):
            document = documents.parse(metadata["bilevel"])
        _check_version(documents.Fields(document, where), kind)
        _check_memory(header.size, where)
        with _damage(where):
            arrays = header.arrays(file)
            if _checksum(metadata["bilevel"], arrays) != metadata.get("sha256"):
                raise ValueError("its checksum does not match")
    return Content(document, arrays | _foreign(documents.Fields(document, where), arrays))


def format_of(path: FilePath, where: str) -> object:
    """The format that a file claims to have; `read` finds out whether that is true."""
    with open_regular(path, where) as file, _damage(where):
        document = documents.parse(_Header.read(file).metadata.get("bilevel", "{}"))
        return document.get("format") if isinstance(document, dict) else None


class _Header:
    """The header of a file; every number in it has been checked against the length of the file."""

    def __init__(self, entries: dict[str, Json], size: int):
        self.size = size
        self.metadata: dict[str, str] = _texts(entries.pop("__metadata__", {}))
        self.entries = {name: _ArrayEntry.of(name, entry) for name, entry in entries.items()}
        end = 0
        for entry in sorted(self.entries.values(), key=lambda entry: (entry.start, entry.end)):
            if entry.start != end:
                raise ValueError(f"between bytes {end} and {entry.start} arrays overlap or leave a gap")
            end = entry.end
        if end != size:
            raise ValueError(f"its arrays have {end} bytes, and after its header it has {size}")

    @classmethod
    def read(cls, file: BinaryIO) -> _Header:
        """Reads the header; the file is then at the beginning of the arrays."""
        size = os.fstat(file.fileno()).st_size - 8
        length = int.from_bytes(file.read(8), "little")
        if length > size:
            raise ValueError("it ends before its header does")
        if length > LONGEST_HEADER:
            raise ValueError(f"its header has {length} bytes, and {LONGEST_HEADER} are the most")
        entries = documents.parse(file.read(length))
        if not isinstance(entries, dict):
            raise ValueError("its header is no JSON object")
        return cls(entries, size - length)

    def arrays(self, file: BinaryIO) -> dict[str, np.ndarray]:
        """The arrays, which follow the header; they share one piece of memory."""
        data = bytearray(self.size)
        if file.readinto(data) != self.size or file.read(1):  # type: ignore[attr-defined]
            raise ValueError("its length changes while it is read")
        return {name: entry.array(data) for name, entry in self.entries.items()}


class _ArrayEntry(NamedTuple):
    """One array of a header: type, shape, first byte and the byte after its last."""

    dtype: np.dtype
    shape: tuple[int, ...]
    start: int
    end: int

    @classmethod
    def of(cls, name: str, entry: Json) -> _ArrayEntry:
        """Reads an entry from JSON."""
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"array {shown(name)} is described by {shown(entry)}")
        dtype, shape, ends = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _TYPES:
            raise ValueError(f"array {shown(name)} has the unknown type {shown(dtype)}")
        if not (_counts(shape) and _counts(ends) and len(ends) == 2 and len(shape) <= 32):
            raise ValueError(f"array {shown(name)} has shape {shown(shape)} and bytes {shown(ends)}")
        size = _TYPES[dtype].itemsize
        for axis in shape:
            size *= axis  # Python's integers, which do not overflow
        if ends[1] - ends[0] != size:
            raise ValueError(f"array {shown(name)} of shape {shown(shape)} needs {size} bytes, not {shown(ends)}")
        return cls(_TYPES[dtype], tuple(shape), *ends)

    def array(self, data: bytearray) -> np.ndarray:
        """The array in the bytes after the header."""
        raw = np.frombuffer(data, np.uint8, self.end - self.start, self.start)
        if self.dtype == bool and np.any(raw > 1):
            raise ValueError("a truth value is neither 0 nor 1")
        return raw.view(self.dtype).reshape(self.shape)


def _counts(values: Json) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _texts(metadata: Json) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata are no texts")
    return metadata


def _check_version(fields: documents.Fields, kind: Kind) -> None:
    name, version = fields.text("format"), fields.whole("version", least=1)
    library = documents.Fields(fields.mapping("made with"), fields.where).text("bilevel")
    if name != kind.format:
        raise ValueError(f"{fields.where}: it holds a {shown(name)}, and {kind.writer} writes {kind.format!r}.")
    if version > kind.version:
        raise ValueError(
            f"{fields.where}: bilevel {library:.40} wrote it in a newer format; upgrade bilevel to load it."
        )


def _check_memory(size: int, where: str) -> None:
    """A file with holes may be longer than its disk: there is no limit to what it can ask for."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else size
    if size > available:
        raise ValueError(f"{where}: it has {size / 1e9:.1f} GB and this machine has {available / 1e9:.1f} GB.")


def _foreign(fields: documents.Fields, arrays: Arrays) -> dict[str, np.ndarray]:
    """The arrays of types that numpy does not have."""
    own = {}
    for name, dtype in fields.mapping("dtypes").items():
        kind = _ADDED.get(dtype) if isinstance(dtype, str) else None
        if kind is None or name not in arrays or arrays[name].dtype != np.dtype(f"u{kind.itemsize}"):
            raise fields.wrong("dtypes", {name: dtype}, "the names of arrays in it, each with a type that JAX adds")
        own[name] = arrays[name].view(kind)
    return own


def _checksum(text: str, arrays: Arrays) -> str:
    checksum = hashlib.sha256(text.encode())
    for name, array in sorted(arrays.items()):
        checksum.update(json.dumps([name, array.dtype.str, array.shape]).encode())
        checksum.update(array.reshape(-1).view(np.uint8).data)
    return checksum.hexdigest()


@contextlib.contextmanager
def _damage(where: str) -> Iterator[None]:
    """Turns any error into one that says that the file is damaged."""
    try:
        yield
    except (ValueError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{where}: it is cut short, damaged or not a safetensors file ({error}).") from error
