"""The command `bilevel`: parses, calls the library, prints. A file for each group of commands."""

# Each adds its commands, and help lists them in this order.
from bilevel.cli import tables, runs, studies  # noqa: F401, I001
from bilevel.cli.app import app


def main() -> None:
    """The console script."""
    app(prog_name="bilevel")
