"""The run ends."""

from __future__ import annotations

from collections.abc import Sequence

from bilevel._core.module import part
from bilevel.divergence.base import Policy
from bilevel.results.divergences import Divergence


@part
class Stop(Policy):
    """The run ends with its last finite state, and a warning says what broke and which rate to make smaller."""

    def factor_after(self, before: Sequence[Divergence]) -> float | None:
        """None: it ends."""
        return None
