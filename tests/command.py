"""The command line, called in this process."""

import re

from typer.testing import CliRunner

from bilevel import cli


def call(*arguments, columns=200):
    ran = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": str(columns)}, prog_name="bilevel")
    ran.text, ran.errors = (re.sub(r"\x1b\[[\d;]*m", "", stream) for stream in (ran.stdout, ran.stderr))
    return ran
