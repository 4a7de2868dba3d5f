"""`bilevel resume`: the command whose files a folder holds, once more; what is finished there is not made again."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bilevel.cli.app import app, errors

FILE, FORMAT, VERSION = "command.json", "bilevel.command", 1
LARGEST = 1_000_000  # bytes
COMMANDS = {"compare": "problems", "reproduce": "figures"}  # that keep runs, and their arguments without a name


@contextlib.contextmanager
def remembered(folder: Path, command: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Writes down, in the folder that a command works in, what `resume` needs: the arguments that were given.

    A command that is refused before it has written anything leaves nothing there.
    """
    from bilevel._core.files import write_whole

    if folder.is_file():  # which the command refuses
        yield
        return
    new = not folder.exists()
    given = {name: value for name, value in arguments.items() if value not in (None, False, [], ())}
    whole = {"format": FORMAT, "version": VERSION, "command": command, "arguments": given}
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / FILE, json.dumps(whole, indent=1).encode())
    try:
        yield
    except (ValueError, TypeError, OSError):
        if new and [path.name for path in folder.iterdir()] == [FILE]:
            (folder / FILE).unlink()
            folder.rmdir()
        raise


def kept(folder: Path) -> str:
    """What is said of a command that is ended by a signal."""
    return f"Interrupted: the runs are kept, and `bilevel resume {shlex.quote(str(folder))}` goes on with them."


def recall(folder: Path) -> list[str]:
    """The words of the command line that a folder was made with, but for the folder itself."""
    from bilevel._core import documents
    from bilevel._core.files import read_regular

    file = folder / FILE
    if not file.is_file():
        raise ValueError(_nothing(folder))
    try:
        found = documents.parse(read_regular(file, str(file), LARGEST))
        command, arguments = found["command"], dict(found["arguments"])
        known = found["format"] == FORMAT and command in COMMANDS
        newer = known and int(found["version"]) > VERSION
        words = _words(command, arguments) if known and not newer else []
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{str(file)!r} is damaged, or not of a command that can be resumed.") from error
    if not known:
        raise ValueError(f"{str(file)!r} is not of a command that can be resumed: {' or '.join(COMMANDS)}.")
    if newer:
        raise ValueError(f"{str(file)!r}: a newer bilevel wrote it; upgrade bilevel to resume it.")
    return words


def _nothing(folder: Path) -> str:
    """Why a folder cannot be resumed."""
    if (folder / "run.json").is_file() or any(folder.glob("seed-*/run.json")):
        return f"{str(folder)!r} holds a run of a Python program: start that again, with solve(..., resume=True)."
    return f"there is no {FILE} in {str(folder)!r}: it needs the folder of a `bilevel compare` or `bilevel reproduce`."


def _words(command: str, arguments: dict[str, Any]) -> list[str]:
    """As they would be typed; what they mean is checked by whoever parses them."""
    if "out" in arguments:  # it is where the file is
        raise ValueError("a command's folder is not among its arguments")
    positional = [str(value) for value in arguments.pop(COMMANDS[command], [])]
    each = [(n, v) for n, value in arguments.items() for v in (value if isinstance(value, list) else [value])]
    options = [f"--{name}" if value is True else f"--{name}={value}" for name, value in each]
    return [command, *options, "--", *positional]


@app.command()
def resume(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a `compare` or `reproduce`.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress bar.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Go on with a `bilevel compare` or `bilevel reproduce` that was ended before it was finished.

    It runs the same command again. Runs that are finished in DIR are not made again, and runs that were under way go on
    from the last state that was written, about 30 seconds before they were ended or less.
    """
    with errors(debug):
        command, *words = recall(folder)
    switches = ["--quiet"] * quiet + ["--debug"] * debug
    assert context.parent is not None
    group: Any = context.parent.command
    found = group.get_command(context.parent, command)
    with found.make_context(command, [f"--out={folder}", *switches, *words], parent=context.parent) as own:
        found.invoke(own)
