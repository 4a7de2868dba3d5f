"""The folder of one run: finds, checks and cleans up its files, under a lock."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
import warnings
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from bilevel._core import documents
from bilevel._core.array_files import Content
from bilevel._core.files import read_regular, sync_directory, write_whole
from bilevel._core.types import Json
from bilevel._run import state_files
from bilevel._run.checkpoints import FolderPath
from bilevel._run.lock import Lock

FORMAT, VERSION = "bilevel.run", 1
LARGEST = 100_000_000  # bytes of run.json, which names all tasks
STATE = re.compile(r"state-(\d{12})\.safetensors")
ARRAYS = re.compile(r"state-(\d{12})-[0-9a-f]{8}\.orbax")  # folders, of states whose arrays are in parts
TEMPORARY = re.compile(r"\.bilevel-[0-9a-f]{16}\.tmp")  # what `write_whole` leaves when it is killed
UNFINISHED = re.compile(ARRAYS.pattern + r"\.orbax-checkpoint-tmp.*")  # what Orbax leaves


def arrays_name(step: int, token: str) -> str:
    """The name of a folder of arrays; the token tells apart those of the same step."""
    return f"state-{step:012d}-{token}.orbax"


class RunFolder:
    """A folder whose lock this process holds, from its creation until `close`."""

    def __init__(self, given: FolderPath):
        self.path = Path(given)
        self.where = f"solve(checkpoint={str(given)!r})"
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.where}: it is a file, and it needs a folder.")
        with self._refusal():
            new = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in new:
                sync_directory(folder.parent)
            self._lock = Lock(self.path / "lock")
        self._sweep()

    @property
    def result(self) -> Path:
        return self.path / "result.safetensors"

    def state(self, step: int) -> Path:
        return self.path / f"state-{step:012d}.safetensors"

    def states(self) -> list[Path]:
        """The files of states, the newest first."""
        return sorted((path for path in self.path.iterdir() if STATE.fullmatch(path.name)), reverse=True)

    # ------------------------------------------------------------------ what is run

    def description(self) -> dict[str, Json] | None:
        """The content of run.json; None if there is no run."""
        found: dict[str, Json] = {}
        try:
            file = self.path / "run.json"
            found = documents.parse(read_regular(file, f"{self.where}: {file.name}", LARGEST))
            is_ours = found["format"] == FORMAT
            version = int(found["version"])
        except FileNotFoundError:
            if not self.states():
                return None
            raise ValueError(f"{self.where}: there are states of a run, but no run.json that identifies it.") from None
        except (ValueError, TypeError, KeyError):
            is_ours, version = False, 0
        if not is_ours or version < 1:
            raise ValueError(f"{self.where}: its run.json is damaged, or not of a run.")
        if version > VERSION:
            raise ValueError(f"{self.where}: a newer bilevel wrote it; upgrade bilevel to resume it.")
        return found

    def describe(self, facts: Mapping[str, Json]) -> None:
        whole = {"format": FORMAT, "version": VERSION, "time": time.time(), **facts}
        with self._refusal():
            write_whole(self.path / "run.json", json.dumps(whole, indent=1).encode())

    # ------------------------------------------------------------------ states

    def newest(self, run_digest: str) -> tuple[Path, Content] | None:
        """The newest readable state. Unreadable ones are set aside; otherwise they would outlive new ones."""
        for path in self.states():
            try:
                content = state_files.read(path)
                if content.document.get("run") != run_digest:
                    raise ValueError(f"{path.name} is of another run.")
                return path, content
            except (ValueError, OSError) as error:
                self.set_aside(path, error)
        return None

    def set_aside(self, path: Path, error: object) -> None:
        """Renames a state that cannot be read, and its arrays."""
        said = f"{self.where}: a state cannot be read, so an older one is tried. {error}"
        warnings.warn(said, RuntimeWarning, stacklevel=2)
        for own in [path, *(arrays for arrays in self._arrays() if arrays.name.startswith(f"{path.stem}-"))]:
            with contextlib.suppress(OSError):
                os.replace(own, own.with_suffix(".unreadable"))

    def prune(self, step: int, keep: int, arrays: str | None = None) -> None:
        """Removes old states, and all states after this step, which a run that went back has left.

        Args:
            step: of the state that was written.
            keep: how many states stay.
            arrays: the folder of its arrays; None = they are in its file.
        """
        beyond = [path for path in self.states() if path > self.state(step)]
        for path in beyond + self.states()[len(beyond) + keep :]:
            path.unlink(missing_ok=True)
        for path in self._arrays({state.stem for state in self.states()} - {self.state(step).stem}):
            if path.name != arrays:
                shutil.rmtree(path, ignore_errors=True)

    def _arrays(self, but: Collection[str] = ()) -> list[Path]:
        """The folders of arrays, but for those of these states."""
        found = [path for path in self.path.iterdir() if ARRAYS.fullmatch(path.name)]
        return [path for path in found if path.name[: len("state-") + 12] not in but]

    def _sweep(self) -> None:
        """Removes the remains of killed writers; no other process writes here now."""
        unfinished = []
        for path in self.path.iterdir():
            if TEMPORARY.fullmatch(path.name):
                with contextlib.suppress(OSError):
                    path.unlink()
            elif UNFINISHED.fullmatch(path.name):
                unfinished.append(path)
        for path in unfinished + self._arrays({state.stem for state in self.states()}):
            shutil.rmtree(path, ignore_errors=True)

    # ------------------------------------------------------------------ errors

    @contextlib.contextmanager
    def _refusal(self) -> Any:
        """Turns an error of the system into one that names the argument."""
        try:
            yield
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, f"{self.where}: {error.strerror}, and a run has one process") from None
        except OSError as error:
            raise type(error)(error.errno, f"{self.where} cannot be written, {error.strerror}") from error

    def close(self) -> None:
        self._lock.release()
