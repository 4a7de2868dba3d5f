"""The command `bilevel`: parses, calls the library, prints. A file for each group of commands."""

from bilevel.cli import compare, demo, fit, kept, paper, report, resume, solvers, watch  # noqa: F401  (each adds its commands)
from bilevel.cli.app import app


def main() -> None:
    """The console script."""
    app(prog_name="bilevel")
