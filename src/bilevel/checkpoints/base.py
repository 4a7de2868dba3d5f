"""What a way to keep states is."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from pathlib import Path

import jax

Checksums = dict[str, tuple[int, str]]  # of files, by their paths in a folder: length in bytes, SHA-256


class Writer(abc.ABC):
    """Writes arrays into a folder, each of several processes the parts that its devices hold."""

    @abc.abstractmethod
    def begin(self, place: Path, arrays: Mapping[str, jax.Array]) -> Callable[[], Checksums]:
        """Takes arrays over, in all processes at once.

        Args:
            place: a folder that is not there yet. It appears when all is written.
            arrays: with at least one axis and one number each.

        Returns:
            What is to be called in another thread, once: it waits until all is written, or raises an OSError. Process 0
            gets the checksums of all files, the others nothing.
        """

    @abc.abstractmethod
    def abandon(self) -> None:
        """Waits no longer for other processes, as the run has ended in one of them; what is not whole is lost."""


class Files(abc.ABC):
    """How the states of a run are kept in its folder."""

    def check(self) -> None:  # noqa: B027  (most need nothing)
        """Raises where something is missing, or an option makes no sense."""

    @abc.abstractmethod
    def writer(self, processes: int, rank: int) -> Writer | None:
        """What writes the arrays of a run that so many processes make; None = they go into the file of process 0."""
