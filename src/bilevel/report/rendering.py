"""The template of a page, in which everything is escaped, and the charting library that goes into it."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bilevel.report.tables import number


@functools.cache
def renderer() -> Callable[..., str]:
    """A function from the values of `template/page.html` to the text of a page."""
    try:
        import jinja2
        import markupsafe
        import vl_convert
    except ImportError as error:
        raise ImportError(f"a report needs {error.name}: pip install 'bilevel[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("template")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "json": lambda value: markupsafe.Markup(_as_json(value))}
    # Vega, Vega-Lite and Vega-Embed in one script, which fetches nothing.
    environment.globals |= {
        "library": vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"),
        "versions": _versions(),
    }
    return environment.get_template("page.html").render


def _as_json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it ends the element or begins a comment."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _versions() -> list[tuple[str, str]]:
    from bilevel import __version__

    packages = [(name, importlib.metadata.version(name)) for name in ("jax", "numpy")]
    return [("bilevel", __version__), *packages, ("python", platform.python_version())]
