"""What is wrong with what the user gave."""

from __future__ import annotations


class InputError(ValueError):
    """A file, a column or an option is not what is needed: nothing was fitted and nothing was written."""

    exit_code = 2  # of the command line, as for wrong usage
