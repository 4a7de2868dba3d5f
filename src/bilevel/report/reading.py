"""The results of a file or a folder, for `bilevel report`."""

from __future__ import annotations

from pathlib import Path

from bilevel._core import array_files
from bilevel.results.result import Result
from bilevel.results.results import Results
from bilevel.results.storage import SEVERAL, read, read_all

NAME = "result.safetensors"  # in the folder of a run that has ended


def results_of(path: Path) -> Result | Results:
    """What `Result.save` or `Results.save` wrote to a file, or `solve(checkpoint=...)` to a folder.

    Of a folder with several seeds those that have ended are taken.
    """
    if not path.exists():
        raise FileNotFoundError(f"{str(path)!r}: there is no such file or folder.")
    if not path.is_dir():
        return (
            Results(read_all(path))
            if array_files.format_of(path, f"report({str(path)!r})") == SEVERAL.format
            else read(path)
        )
    if (path / NAME).is_file():
        return results_of(path / NAME)
    files = sorted(path.glob(f"seed-*/{NAME}"), key=lambda file: (len(file.parent.name), file.parent.name))
    if not files:
        raise FileNotFoundError(
            f"{str(path)!r}: there is no {NAME} in it: it needs the folder of a run that has ended, as "
            f"solve(checkpoint=...) makes one; `bilevel watch` shows a run that goes on."
        )
    return Results(read(file) for file in files)
