"""The settings of a fit, from options of the command line and from a TOML file. The command line wins."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bilevel._core import values
from bilevel._core.files import read_regular
from bilevel._core.values import suggestion
from bilevel.estimators.tables.columns import CLASSIFICATION, KINDS, REGRESSION
from bilevel.estimators.tables.reading import InputError

LARGEST = 1_000_000  # bytes of a TOML file
MODELS = ("representation", "kernel")


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of `bilevel fit`, whose help describes them."""

    data: str
    target: str
    task: str
    out: str = "run"
    model: str = "representation"
    weighting: str | float = "min-max"
    kind: str | None = None
    exclude: tuple[str, ...] = ()
    number: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    date: tuple[str, ...] = ()
    separator: str | None = None
    encoding: str = "utf-8"
    test: float = 0.2
    smallest: int = 40
    steps: int | None = None
    refit: bool = True
    seed: int = 0
    replace: bool = False
    quiet: bool = False
    json: bool = False
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, str]:
        """The kinds of columns that the user names."""
        return {name: kind for kind in KINDS for name in getattr(self, kind)}

    def toml(self) -> str:
        """A TOML file that asks for the same fit, without the options for output."""
        others = ("out", "replace", "quiet", "json")
        own = {name: value for name, value in dataclasses.asdict(self).items() if name not in others}
        given = own.pop("parameters")
        lines = [f"{name} = {_toml(value)}" for name, value in own.items() if value not in (None, ())]
        tables = ["", "[parameters]", *(f"{name} = {_toml(value)}" for name, value in given.items())] if given else []
        return "\n".join([*lines, *tables]) + "\n"


def _toml(value: Any) -> str:
    # Texts, numbers, truth values and lists of them look the same in JSON.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_is_text, value))


def _is_weighting(value: Any) -> bool:
    return value in ("min-max", "min-avg", "regret") or (type(value) in (int, float) and 0 < value < 1)


# For each option, whether a value fits, and what it needs.
OPTIONS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("data", "target", "task", "out", "separator", "encoding"), (_is_text, "a text")),
    **dict.fromkeys(("exclude", *KINDS), (_is_texts, "a list of names of columns")),
    **dict.fromkeys(("refit", "replace", "quiet", "json"), (lambda own: isinstance(own, bool), "true or false")),
    "model": (lambda own: own in MODELS, " or ".join(MODELS)),
    "kind": (lambda own: own in (CLASSIFICATION, REGRESSION), f"{CLASSIFICATION} or {REGRESSION}"),
    "weighting": (
        _is_weighting,
        "min-max, min-avg, regret, or the share of the worst tasks that count, above 0, below 1",
    ),
    "test": (lambda own: type(own) is float and 0.05 <= own <= 0.5, "a number from 0.05 to 0.5"),
    "smallest": (lambda own: values.is_whole(own) and own >= 10, "a whole number, 10 or more"),
    "steps": (lambda own: values.is_whole(own) and own >= 1, "a whole number, 1 or more"),
    "seed": (lambda own: values.is_whole(own) and 0 <= own < 2**31, "a whole number from 0 to 2147483647"),
    "parameters": (lambda own: isinstance(own, dict), "a table of parameters of the estimator"),
}


def settings(given: Mapping[str, Any], config: Path | None) -> Settings:
    """Merges the options that the command line sets, those of the TOML file, and the defaults; the first wins."""
    found: dict[str, Any] = {}
    for where, own in (("", _from_file(config)), ("--", given)):
        for name, value in own.items():
            shown = f"{where}{name}" if where else f"{str(config)!r}: {name}"
            if name not in OPTIONS:
                raise InputError(f"{shown} is no option of `bilevel fit`. {suggestion(name, OPTIONS)}")
            fits, needs = OPTIONS[name]
            if not fits(value):
                raise InputError(f"{shown} is {value!r:.80}: it needs {needs}.")
            found[name] = tuple(value) if isinstance(value, list) else value
    for name, what in (("data", "a CSV or Parquet file"), ("target", "--target"), ("task", "--task")):
        if name not in found:
            raise InputError(f"`bilevel fit` needs {what}: bilevel fit data.csv --target outcome --task clinic")
    return Settings(**found)


def _from_file(config: Path | None) -> dict[str, Any]:
    if config is None:
        return {}
    try:
        return tomllib.loads(read_regular(config, f"--config {str(config)!r}", LARGEST).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {str(config)!r} is no TOML file: {error}.") from error
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error
