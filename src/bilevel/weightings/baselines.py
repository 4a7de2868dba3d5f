"""What each task could reach, as a value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from bilevel._core.module import leaf, part, static

if TYPE_CHECKING:
    from bilevel.problem.base import BaseProblem


class WorstRegret(NamedTuple):
    """The largest of the regrets, and whose it is."""

    value: float
    number: int  # of the task
    task: str


@part
class Baselines:
    """A loss that each task could reach (b_i), with its noise: what `bl.baselines` measures, or numbers of your own.

    Args:
        values: one per task, in their order.
        errors: the standard error of each; None = not known.
        names: of the tasks; () = not known.

    >>> known = Baselines([0.2, 0.5], names=["north", "south"])
    >>> known.regrets([0.25, 0.5]).round(3).tolist()
    [0.05, 0.0]
    """

    values: ArrayLike | Sequence[float] = leaf()
    errors: ArrayLike | Sequence[float] | None = leaf(default=None)
    names: Sequence[str] = static(by=len, default=())

    def array(self, problem: BaseProblem) -> np.ndarray:
        """The values in the order of a problem's tasks, found by their names."""
        place = {name: i for i, name in enumerate(self.names)}
        missing = [name for name in problem.names if name not in place]
        if missing or len(self.names) != len(np.asarray(self.values)):
            said = f"none for task {missing[0]!r}" if missing else f"{len(self.names)} names"
            raise ValueError(f"Baselines(names=...) has {said}: it needs one name and one value for each task.")
        return np.asarray(self.values)[[place[name] for name in problem.names]]

    def regrets(self, losses: ArrayLike) -> np.ndarray:
        """f_i - b_i."""
        return np.asarray(losses) - np.asarray(self.values)

    def worst_regret(self, losses: ArrayLike) -> WorstRegret:
        """The largest f_i - b_i, of the tasks whose b_i is known.

        >>> Baselines([0.2, 0.5], names=["north", "south"]).worst_regret([0.5, 0.6]).task
        'north'
        """
        regrets = self.regrets(losses)
        i = int(np.nanargmax(regrets)) if not np.isnan(regrets).all() else 0
        return WorstRegret(float(regrets[i]), i, self.names[i] if self.names else f"task {i}")

    def __repr__(self) -> str:
        parts = [f"{np.asarray(self.values).round(4).tolist()}"]
        if self.errors is not None:
            parts.append(f"errors={np.asarray(self.errors).round(4).tolist()}")
        if self.names:
            parts.append(f"names={list(self.names)}")
        return f"Baselines({', '.join(parts)})"


def values_of(baseline: Any) -> Any:
    """The numbers of what was given as a baseline."""
    return baseline.values if isinstance(baseline, Baselines) else baseline
