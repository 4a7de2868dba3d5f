"""`bilevel watch`, `report` and `resume`, for existing runs; and the scope in which commands make runs."""

from __future__ import annotations

import contextlib
import json
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bilevel.cli.app import Debug, Quiet, app, errors

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from bilevel._run.watching import Watched

FILE, FORMAT, VERSION = "command.json", "bilevel.command", 1
LARGEST = 1_000_000  # bytes
COMMANDS = {"compare": "problems", "reproduce": "figures"}  # those that can be resumed, and their positional arguments
SECONDS = 1.0  # between two updates of `bilevel watch`


@app.command()
def watch(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="The folder of a run, of several, or of a `compare` or `reproduce`.",
            exists=True,
            file_okay=False,
        ),
    ],
    once: Annotated[bool, typer.Option("--once", help="Print what is there now, and exit.")] = False,
) -> None:
    """Watch a run that `solve(..., checkpoint=FOLDER)` saves, or the runs of several seeds.

    It shows losses, weights, the worst tasks, rates and the time left. It reads only the files of the folder, so it
    disturbs no run, works from another machine, and also shows a run that was killed. It ends with the runs, or with
    Ctrl-C. Without a terminal it prints the present state once.
    """
    from rich.console import Console

    from bilevel._run.watching import Watched

    console, watched = Console(highlight=False), Watched(folder)
    if not once and console.is_terminal:
        follow(watched, console)
    print_frame(watched, console)


def print_frame(watched: Watched, console: Console) -> None:
    """Prints the present state."""
    from bilevel.cli.watch_screen import frame

    console.print(frame(watched, watched.poll(), console))


def follow(watched: Watched, console: Console) -> None:
    """Shows the runs on a separate screen until they have ended, or until Ctrl-C."""
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    from bilevel.cli.watch_screen import frame

    def screen(shown: RenderableType) -> RenderableType:
        return Group(shown, Text(f"\n{time.strftime('%H:%M:%S')}   Ctrl-C leaves", "dim"))

    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                runs = watched.poll()
                live.update(screen(frame(watched, runs, console)), refresh=True)
                if all(run.is_over for run in runs):
                    return
                time.sleep(SECONDS)
    except KeyboardInterrupt:
        return


@app.command()
def report(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE_OR_FOLDER",
            help="What `result.save` wrote, or the folder of a run or `bilevel fit`.",
            exists=True,
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The page. Default: report.html in FOLDER, or FILE with .html.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", help="A file or folder to compare with, such as that of a min-avg run.", exists=True),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Of the page. Default: the solver's name.")] = None,
    debug: Debug = False,
) -> None:
    """Write a result as one HTML page that opens offline: losses by task, charts of the run, findings, settings.

    It needs the extra: pip install "bilevel[report]".
    """
    with errors(debug):
        from bilevel.report import page

        own = _of_table(source)
        shown = page.results_of(source)
        against = own.get("against") if against is None else against
        other = None if against is None else page.results_of(against)
        target = out or (source / "report.html" if source.is_dir() else source.with_suffix(".html"))
        page.write(shown, target, against=other, title=title or own.get("title"), section=own.get("section"))
        typer.echo(f"wrote {target}")


def _of_table(source: Path) -> dict[str, Any]:
    """The arguments of a page that come from the folder of a `bilevel fit`."""
    if not (source / "fit.json").is_file():
        return {}
    from bilevel.estimators.tables import folder

    kept = folder.read(source)
    return {"against": source / folder.OTHER, "title": folder.title(kept), "section": folder.section(kept)}


# ------------------------------------------------------------------ resume


@contextlib.contextmanager
def resumable(folder: Path, command: str, arguments: Mapping[str, Any], ray: bool, debug: bool) -> Iterator[None]:
    """A scope in which a command makes its runs. Its arguments are saved in its folder, for `bilevel resume`.

    A command that is refused before it has written anything leaves nothing behind. With `ray`, runs are tasks of Ray.
    """
    from bilevel._run.compiling import compile_cache

    hint = f"Interrupted: the runs are saved, and `bilevel resume {shlex.quote(str(folder))}` continues them."
    with compile_cache(), errors(debug, hint), _remembered(folder, command, arguments), contextlib.ExitStack() as stack:
        if ray:
            from bilevel._run.engines.ray import tasks

            stack.enter_context(tasks())
        yield


@contextlib.contextmanager
def _remembered(folder: Path, command: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    from bilevel._core.files import write_whole

    if folder.is_file():  # the command refuses it
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


def recall(folder: Path) -> list[str]:
    """The command line that made a folder, as words, without the folder itself."""
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
    if (folder / "run.json").is_file() or any(folder.glob("seed-*/run.json")):
        return f"{str(folder)!r} holds a run of a Python program: start that again, with solve(..., resume=True)."
    return f"there is no {FILE} in {str(folder)!r}: it needs the folder of a `bilevel compare` or `bilevel reproduce`."


def _words(command: str, arguments: dict[str, Any]) -> list[str]:
    """The words as a user would type them; the parser of the command checks them."""
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
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Continue a `bilevel compare` or `bilevel reproduce` that ended before it was finished.

    It runs the same command again. Finished runs in DIR are not made again. The others continue from their last saved
    state, which is at most about 30 seconds older than their end.
    """
    with errors(debug):
        command, *words = recall(folder)
    switches = ["--quiet"] * quiet + ["--debug"] * debug
    assert context.parent is not None
    group: Any = context.parent.command
    found = group.get_command(context.parent, command)
    with found.make_context(command, [f"--out={folder}", *switches, *words], parent=context.parent) as own:
        found.invoke(own)
