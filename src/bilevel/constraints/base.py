"""What a constraint is."""

from __future__ import annotations

import abc
from typing import TypeVar

X = TypeVar("X")


class Constraint(abc.ABC):
    """A convex set of pytrees: a part with one method."""

    @abc.abstractmethod
    def project(self, x: X) -> X:
        """The nearest point of the set."""
