"""All of a state in one file."""

from __future__ import annotations

from bilevel._core.module import part
from bilevel.checkpoints.base import Files


@part
class OneFile(Files):
    """Process 0 writes all of a state into one safetensors file.

    The state is gathered in every process first. Only process 0 needs to see the folder.
    """

    def writer(self, processes: int, rank: int) -> None:
        """None: there is nothing beside that file."""
        return None
