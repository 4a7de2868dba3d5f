"""`Baselines`, the loss that each task could reach, and weightings that compare with it: `Regret` and `Ratio`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from bilevel._core import values
from bilevel._core.module import leaf, part, static
from bilevel.weightings.base import Compared, Shifted, StateT, Weighting
from bilevel.weightings.min_max import SimplexAscent

if TYPE_CHECKING:
    from bilevel.problem.problem import BaseProblem


class WorstRegret(NamedTuple):
    """The largest regret, and the task that has it."""

    value: float
    number: int  # of the task
    task: str


@part
class Baselines:
    """A loss that each task could reach (b_i), with its noise: what `bl.baselines` measures, or numbers of your own.

    Args:
        values: one per task, in their order.
        errors: the standard error of each; None = not known.
        names: the names of the tasks; () = not known.

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
        """The largest f_i - b_i among the tasks whose b_i is known.

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
    """The numbers of a baseline, given as numbers or as `Baselines`."""
    return baseline.values if isinstance(baseline, Baselines) else baseline


@part
class Regret(Shifted[StateT]):
    """The tasks are compared by f_i - b_i, with b_i a loss that task i could reach: min over x of max_i (f_i - b_i).

    A task whose labels are noise has the largest loss whatever x is, and the min-max of losses then serves nobody. Its
    regret is small, and the worst task that x can still help comes first. The direction of x is that of the losses, as
    b_i does not depend on x.

    Args:
        baseline: b_i, one number per task in their order, or what `bl.baselines` returns. By name:
            `bl.Baselines(values, names=names).array(problem)`.
        weighting: the weighting that the regrets move; any other one.

    Reference: Agarwal and Zhang, "Minimax regret optimization for robust machine learning under distribution shift",
    COLT 2022. With bilevel problems it is an extension of ours.

    >>> worst = Regret([0.0, 2.5], SimplexAscent())
    >>> weights, state = worst.init(2, jnp.float32)
    >>> worst.update(weights, jnp.array([1.0, 3.0]), state, 0.5)[0].tolist()
    [0.625, 0.375]
    """

    WORD = "regret"
    baseline: ArrayLike | Sequence[float] | Baselines = leaf()  # b
    weighting: Weighting[StateT] = SimplexAscent()  # type: ignore[assignment]

    def check(self, n: int) -> None:
        """n finite numbers."""
        values.one_per_task("baseline", values_of(self.baseline), n, of="Regret")
        self.weighting.check(n)

    def keep(self, n: int, dtype: DTypeLike) -> jax.Array:
        """b."""
        return jnp.asarray(values_of(self.baseline), dtype)

    def seen(self, losses: jax.Array, kept: jax.Array) -> jax.Array:
        """f - b."""
        return losses - kept

    def known_baselines(self, n: int) -> np.ndarray | None:
        """b; None if all are 0, as regrets are then losses."""
        found = np.asarray(values_of(self.baseline), float)
        return found if np.any(found) else None


@part
class Ratio(Compared[StateT]):
    """The tasks are compared by f_i / b_i, with b_i > 0 the unit of task i: min over x of max_i f_i / b_i.

    For losses whose units differ between tasks, such as squared errors of different quantities, or where a loss twice
    what a task could reach is equally bad for all. x then descends sum_i (weights_i / b_i) f_i.

    Args:
        baseline: b_i, one positive number per task in their order, or what `bl.baselines` returns. By name:
            `bl.Baselines(values, names=names).array(problem)`.
        weighting: the weighting that the ratios move; any other one.

    Ours; the ratios are the competitive analysis of online algorithms and the "relative regret" of robust optimization
    (Kouvelis and Yu, "Robust discrete optimization and its applications", 1997).

    >>> worst = Ratio([0.5, 2.0])
    >>> weights, state = worst.init(2, jnp.float32)
    >>> worst.in_direction(weights, state).tolist()
    [1.0, 0.25]
    """

    WORD = "ratio"
    baseline: ArrayLike | Sequence[float] | Baselines = leaf()  # b
    weighting: Weighting[StateT] = SimplexAscent()  # type: ignore[assignment]

    def check(self, n: int) -> None:
        """n positive numbers."""
        values.one_per_task("baseline", values_of(self.baseline), n, above=0, of="Ratio")
        self.weighting.check(n)

    def keep(self, n: int, dtype: DTypeLike) -> jax.Array:
        """b."""
        return jnp.asarray(values_of(self.baseline), dtype)

    def seen(self, losses: jax.Array, kept: jax.Array) -> jax.Array:
        """f / b."""
        return losses / kept

    def known_baselines(self, n: int) -> np.ndarray:
        """b."""
        return np.asarray(values_of(self.baseline), float)
