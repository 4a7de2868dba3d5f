"""Everything that reads a file, as a function of bytes: what it may raise is told, all else is a crash."""

import io
import os
import pathlib
import tempfile
import warnings

import numpy as np
from rich.console import Console

import bilevel as bl
from bilevel._core import array_files, documents
from bilevel._run import state_files
from bilevel._run.run_folder import RunFolder
from bilevel._run.watching import Watched
from bilevel.cli.runs import print_frame
from bilevel.results import storage
from bilevel.studies import records

FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="bilevel-fuzz-"))
REFUSALS = (ValueError, OSError)
LINES = b"""{"event": "start", "time": 1.0, "seed": 0, "steps": 9, "step": 0, "tasks": ["a"]}
{"event": "evaluation", "time": 2.0, "step": 0, "worst": 1.5, "mean": 1.5, "tasks": {"a": [1.5, 1.0]}}
{"event": "divergence", "time": 3.0, "step": 2, "back_to": 1, "message": "m"}
{"event": "checkpoint", "time": 4.0, "step": 2}
{"event": "end", "time": 5.0, "status": "finished"}
{"event": "e"""


def _file(data: bytes, name: str = "f") -> pathlib.Path:
    path = FOLDER / name
    path.write_bytes(data)
    return path


def result(data: bytes) -> None:
    """`bl.load` of any bytes."""
    bl.load(_file(data)).summary()


def signed_result(data: bytes) -> None:
    """`bl.load` of any document under a right checksum, which no fuzzer finds by itself."""
    _, _, document = data.partition(b"\0")
    text = document.decode("utf-8", "surrogateescape")
    try:
        own = {"a": np.zeros(2), "history/step": np.zeros(1)}
        content = _sealed(text, own)
    except UnicodeEncodeError:
        return
    bl.load(_file(content)).summary()


def _sealed(text: str, arrays: dict) -> bytes:
    from safetensors.numpy import save

    return save(arrays, {"bilevel": text, "sha256": array_files._checksum(text, arrays)})


def header(data: bytes) -> None:
    """A file of arrays with any header, its length told rightly."""
    array_files.read(_file(len(data).to_bytes(8, "little") + data), storage.KIND)


def document(data: bytes) -> None:
    """A JSON text."""
    documents.parse(data)


def record(data: bytes) -> None:
    """The CSV file of a run."""
    records._read_record(_file(data, "seed-0.csv"))


def facts(data: bytes) -> None:
    """A JSON file of facts."""
    _file(data, "facts.json")
    records.RecordFiles(FOLDER).read_facts("facts")


def run_folder(data: bytes) -> None:
    """run.json of a run that is kept."""
    folder = RunFolder(FOLDER / "run")
    try:
        (folder.path / "run.json").write_bytes(data)
        folder.description()
    finally:
        folder.close()


def state(data: bytes) -> None:
    """A state of a run that is kept."""
    state_files.read(_file(data))


def watched(data: bytes) -> None:
    """A run as `bilevel watch` shows it, from the lines that it wrote; run.json is what comes before a NUL."""
    folder = FOLDER / "watched"
    folder.mkdir(exist_ok=True)
    described, _, lines = data.partition(b"\0")
    (folder / "run.json").write_bytes(described)
    (folder / "progress.jsonl").write_bytes(lines)
    print_frame(Watched(folder), Console(file=io.StringIO(), width=80))


READERS = {
    "result": result,
    "signed result": signed_result,
    "header": header,
    "document": document,
    "record": record,
    "facts": facts,
    "run folder": run_folder,
    "state": state,
    "watched": watched,
}


def feed(reader, data: bytes) -> bool:
    """Whether the reader took the bytes; False where it refused them in words. All else is raised."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader(data)
    except REFUSALS as error:
        if not str(error):
            raise AssertionError(f"{type(error).__name__} without words") from error
        return False
    return True


def seeds() -> dict[str, list[bytes]]:
    """What a fuzzer begins with: small files that are right."""
    saved = pathlib.Path(__file__).parents[1] / "results" / "data" / "result-0.1.0.safetensors"
    content = saved.read_bytes()
    length = int.from_bytes(content[:8], "little")
    text = documents.parse(content[8 : 8 + length])["__metadata__"]["bilevel"].encode()
    table = (",".join(records.COLUMNS) + "\n" + ",".join("1" * len(records.COLUMNS)) + "\n").encode()
    return {
        "result": [content],
        "signed result": [b"\0" + text],
        "header": [content[8 : 8 + length], b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'],
        "document": [text],
        "record": [table],
        "facts": [b'{"a": 1.5, "b": "text"}'],
        "run folder": [b'{"format": "bilevel.run", "version": 1, "identity": {}}'],
        "state": [array_files.encode(state_files.KIND, {"made with": {"bilevel": "1"}}, {"carry/a": np.zeros(2)})],
        "watched": [b'{"title": "MORBiT", "seed": 0, "steps": 9, "tasks": ["a"]}\0' + LINES],
    }


def forget() -> None:
    """Removes the files."""
    for path in sorted(FOLDER.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    os.rmdir(FOLDER)
