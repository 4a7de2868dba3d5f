"""How the states of a run are kept: `bl.Checkpoint(folder, files=...)` takes any of them.

`OneFile` is the default: process 0 writes all of a state into one file. With `Orbax` every process writes what its own
devices hold, for states that are too large to be gathered on one host.
"""

from bilevel.checkpoints.base import Files
from bilevel.checkpoints.one_file import OneFile
from bilevel.checkpoints.orbax_parts import Orbax

__all__ = ["Files", "OneFile", "Orbax"]
