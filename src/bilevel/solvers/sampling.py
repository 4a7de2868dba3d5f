"""Which tasks a step sees: all of them; m of n, so that what a step costs follows m; or m new ones of a distribution.

`Fresh` is for tasks from a distribution; see its docstring. The others draw m of a list of n tasks;
benchmarks/task_sampling.py measures how far the cost of a step then follows m only. With m of n tasks in a step,

- only these m move what is theirs (y_i, its optimiser, v_i, tables, curvature). A state has one row a task, so that
  this is written once for all solvers: the rows and the tasks are taken out, they are a problem of m tasks, the
  solver's own step is taken on it, and the rows are put back. The others are where their last visit left them;
- x moves along  sum_{i drawn} (weights_i / share_i) D_i,  where share_i is how often task i is drawn in a step on
  average: its mean is the direction of all tasks;
- the weights move by  c_i + [i drawn] (F_i - c_i) / share_i,  where c_i is the loss at the last visit of task i and F_i
  that of this step: its mean is F_i, and the better c_i is known, the smaller its variance. The weights of tasks that
  are not drawn move by c_i. What has still to be added to them is kept as a multiple of
  c_i plus a number that changes when a task is visited, so that a step writes m numbers here too.

The weights themselves move every n // (8 m) steps (every step where that is less than 2), by all that the steps in
between have seen: a move touches n numbers, and shared among those steps it costs less than m tasks do. A task is
visited every n / m steps, so that nothing waits long by comparison. Each weighting says what a move costs.

A rate of the weights that is chosen rather than given is multiplied by (m / n)^(3/2): by m / n, the share of the losses
that a step sees, and by (m / n)^(1/2), as the paper's gamma falls with n^(-1/2). A visit moves the weight of its task
alone, by what is noise of a batch as well, and the more tasks there are the smaller the weights: with m / n only,
weights on 10,000 sinusoids followed that noise, x followed them, and the run ended far above where it began.
A chosen rate of x is multiplied by m / n in solvers that move everything at once (`SOBA`, `SABA`, `MASOBA`,
`MORMASOBA`, `MRBO`, `SUSTAIN`, `SPABA`, `SRBA`), where x looks at y_i as its last visit left it. The others visit a
task, and then look at it.
Curvatures are measured of the tasks of one draw; the others start from the largest of these, and find their own when
they are visited.

y_i and v_i are of the x of their last visit, n / m steps ago. Two things are done about that:

- where tasks are visited every 512 steps or more rarely, and the rates of y are chosen, a visit begins with three more
  lower steps (`solvers/_base/some_tasks.py` says what happens without);
- at the end every task is visited once more, with x as it is: in `result.last`, `best` and `average` every y_i is
  fitted to their x by ten steps of conjugate gradients on all training rows, a block of tasks at a time: 0.6 s for the
  three with 100,000 regressions of 16 rows, on two cores. `result.random` and the history are of the run as it was,
  and a run that is resumed goes on from there. With 10,000 sinusoids, 64 in a step, the worst tenth has a mean test
  loss of 0.08 with it and 0.29 without.

Where you give rates, a rate of x that is right with all tasks in every step may be too large. `MORBiT(lower_steps=10)`
lets a task catch up when it is visited. All its steps have the rate of the first one's rows: give rates with it, as on
the regressions of benchmarks/task_sampling.py, with 10,000 steps between two visits, chosen ones diverged with
`Tracked(steps=10)` and with `ConjugateGradient`.

What is not to be expected: that few visits find the worst of very many tasks. On these regressions, with six visits a
task, weights stay close to uniform (the ten heaviest of 16,000 tasks have 0.03 together), x is that of the mean loss,
and the largest loss of all tasks ends at about that of the first x with y fitted.

On several devices (`solve(devices=)`) each draws from its own tasks, from all of them equally many: of a group of which
c tasks are drawn and D devices have equal parts, each device draws c / D, rounded up, with shares in its own draw. So
the estimates stay unbiased, a step does equally much on every device, and no task moves between them.

Tasks in several groups: from each group a number of tasks is drawn that is proportional to its size, at least one.

Solvers whose recursion compares the last point with this one (`MRBO`, `SUSTAIN`, `SPABA`, `SRBA`, `STABLE`) look at the
same tasks at both. A task that was not in the last step has not moved since; what is followed task by task starts anew
there, and the matrices of `STABLE` are a running mean over its visits. `SPABA` and `SRBA` start afresh from a large
batch of the tasks that the step sees: unbiased, but with the noise of the draw, so that constant rates no longer end at
a solution exactly. `FSLA` and `VRBO` see all tasks: they take differences of tasks that they have just moved, where a
draw cannot stand for those that it did not move.

Reference: the estimate with a table is that of SAGA (Defazio, Bach, Lacoste-Julien, NeurIPS 2014), here over tasks;
systematic sampling with unequal probabilities is Madow's, "On the theory of systematic sampling, II", 1949. For
min-max bilevel problems both are an extension of ours, without a theorem.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bilevel._core import values
from bilevel._core.module import leaf, part
from bilevel.problem.per_task import InOrder

__all__ = ["All", "Fresh", "Mixture", "Sampling", "Uniform"]


class Draw(NamedTuple):
    """Tasks drawn from one group."""

    places: jax.Array  # in the group; a place may be there twice
    share: jax.Array  # how often each is drawn in a step on average


class Sampling(abc.ABC):
    """Which tasks a step sees.

    To write one, make a part (`bl.part`) that inherits this. A group of n tasks has an urn, any pytree of arrays, from
    which `draw` takes `count` of them. What makes the estimates unbiased is that `Draw.share` is exact. On several
    devices the tasks of each have an urn of their own, whose arrays must have one row a task, and the methods are
    mapped over them (`jax.vmap`).
    """

    draws: ClassVar[bool] = True  # whether a step sees some tasks only
    fresh: ClassVar[bool] = False  # whether a step sees tasks that are new
    tasks: int  # m

    def check(self, sizes: Sequence[int]) -> None:
        """Raises where the number of tasks makes no sense for groups of these sizes."""
        name = type(self).__name__
        values.whole("tasks", self.tasks, most=sum(sizes), of=name)
        if self.tasks < len(sizes):
            raise ValueError(
                f"{name}(tasks={self.tasks}): the problem has {len(sizes)} groups of tasks, and a step draws at least "
                "one from each."
            )

    def counts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """How many tasks a step draws from each group: proportional to its size, at least one, `tasks` in all.

        >>> from bilevel.solvers.sampling import Uniform
        >>> Uniform(10).counts([90, 9, 1])
        (8, 1, 1)
        """
        wanted = self.tasks * np.asarray(sizes) / sum(sizes)
        counts = np.clip(np.floor(wanted).astype(int), 1, sizes)
        while counts.sum() > self.tasks:
            counts[np.argmax(np.where(counts > 1, counts - wanted, -np.inf))] -= 1
        while counts.sum() < self.tasks:
            counts[np.argmax(np.where(counts < sizes, wanted - counts, -np.inf))] += 1
        return tuple(map(int, counts))

    def fill(self, weights: jax.Array, count: int, key: jax.Array) -> Any:
        """The urn of a group whose tasks have these weights, from which `count` are drawn at a time."""
        return ()

    def refill(self, urn: Any, weights: jax.Array, count: int) -> Any:
        """The urn after the weights have moved."""
        return urn

    @abc.abstractmethod
    def draw(self, urn: Any, weights: jax.Array, count: int, key: jax.Array) -> Draw:
        """Some tasks of a group; of the weights only the number matters, and the dtype."""


@part
class All(Sampling):
    """All tasks in every step, as published."""

    draws = False

    def check(self, sizes: Sequence[int]) -> None:
        """There is nothing to check."""

    def counts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """All of them."""
        return tuple(sizes)

    def draw(self, urn: Any, weights: jax.Array, count: int, key: jax.Array) -> Draw:
        """All of them, in their order."""
        return Draw(jnp.arange(count), jnp.ones_like(weights))


@part
class Uniform(Sampling):
    """`tasks` tasks in every step, drawn uniformly without replacement.

    Where few tasks decide, as in min-max problems, most of what it draws has a weight of almost 0: see `Mixture`.

    >>> import bilevel as bl
    >>> bl.SOBA(sampling=bl.sampling.Uniform(64)).sampling
    Uniform(tasks=64)
    """

    tasks: int

    def draw(self, urn: Any, weights: jax.Array, count: int, key: jax.Array) -> Draw:
        """`count` places, at a cost that does not depend on how many there are."""
        size = weights.shape[0]
        share = jnp.full(count, count / size, weights.dtype)
        if count == size:
            return Draw(jnp.arange(count), share)
        last = jnp.arange(size - count, size)
        return Draw(subset(jax.random.randint(key, (count,), 0, last + 1), size), share)


def subset(numbers: jax.Array, size: int) -> jax.Array:
    """Different places below `size`, all subsets equally likely, from m numbers: number j of 0..size-m+j.

    Reference: Floyd's algorithm, in Bentley, "Programming pearls: a sample of brilliance", 1987.

    >>> subset(jnp.array([1, 1]), 3).tolist()
    [1, 2]
    """
    count = numbers.shape[0]

    def add(j: jax.Array, places: jax.Array) -> jax.Array:
        taken = jnp.any(places == numbers[j])
        return places.at[j].set(jnp.where(taken, size - count + j, numbers[j]))

    return jax.lax.fori_loop(0, count, add, jnp.full(count, -1, numbers.dtype))


MARGIN = 1e-5  # of the ticks, left over for what rounding takes


class Urn(NamedTuple):
    """Every task of a group as an interval of whole numbers (ticks), one after the other in a random order.

    Whole numbers: the running sum of a million shares in float32 would be wrong by a tenth of a share.
    """

    order: jax.Array
    end: jax.Array  # of the intervals, in the random order

    @classmethod
    def of(cls, share: jax.Array, count: int, order: jax.Array) -> Urn:
        """The urn for wanted shares, of sum `count`; those that it really has are the lengths of its intervals."""
        spacing = float(ticks(count))
        length = jnp.maximum((share[order] * (spacing * (1 - MARGIN))).astype(jnp.uint32), 1)
        left = jnp.uint32(count * ticks(count)) - jnp.sum(length, dtype=jnp.uint32)
        each, more = jnp.divmod(left, jnp.uint32(len(share)))
        length = length + each + (jnp.arange(len(share), dtype=jnp.uint32) < more)
        # In any order, as whole numbers are exact: a third of the time of jnp.cumsum on a CPU.
        return cls(order, jax.lax.associative_scan(jnp.add, length))

    def at(self, first: jax.Array, count: int, dtype: Any) -> Draw:
        """The tasks at tick `first` and every `ticks(count)` from there."""
        points = first + jnp.arange(count, dtype=jnp.uint32) * jnp.uint32(ticks(count))
        i = jnp.searchsorted(self.end, points, side="right", method="scan_unrolled")
        begin = jnp.where(i > 0, self.end[jnp.maximum(i, 1) - 1], 0)
        return Draw(self.order[i], (self.end[i] - begin).astype(dtype) / float(ticks(count)))


def ticks(count: int) -> int:
    """How many ticks lie between neighbouring points of a draw: a power of 2, so that random bits are uniform in it.

    >>> ticks(3) == 2**30, ticks(64) == 2**25
    (True, True)
    """
    return 1 << (((2**32 - 1) // count).bit_length() - 1)


@part
class Mixture(Sampling):
    """`tasks` tasks in every step, task i with a probability proportional to (1 - uniform) weights_i + uniform / n.

    Probabilities above 1 are 1, and the others the larger for it. Heavy tasks are seen in almost every step, and the
    weighted direction has little variance; every task is still seen again after about n / (uniform m) steps, so that
    one whose loss has grown is found. Drawn systematically: a random point on a line of the tasks, each as long as its
    probability, and from there on every point at a distance of 1. No task is drawn twice, and the cost is m log n.

    Args:
        tasks: m.
        uniform: the part that does not look at the weights, in (0, 1].

    >>> import bilevel as bl
    >>> bl.MORBiT(sampling=bl.sampling.Mixture(64)).sampling
    Mixture(tasks=64, uniform=0.5)
    """

    tasks: int
    uniform: float = leaf(default=0.5)  # rho

    def check(self, sizes: Sequence[int]) -> None:
        """A number of tasks, and a share."""
        super().check(sizes)
        values.share("uniform", self.uniform, of="Mixture")

    def fill(self, weights: jax.Array, count: int, key: jax.Array) -> Urn:
        """Tasks in a random order: in the user's, those at equal distances may be alike."""
        return Urn.of(self.shares(weights, count), count, jax.random.permutation(key, len(weights)))

    def refill(self, urn: Urn, weights: jax.Array, count: int) -> Urn:
        """Other shares in the same order: a few passes over n numbers."""
        return Urn.of(self.shares(weights, count), count, urn.order)

    def draw(self, urn: Urn, weights: jax.Array, count: int, key: jax.Array) -> Draw:
        """The tasks at equally spaced ticks."""
        if count == len(weights):
            return Draw(jnp.arange(count), jnp.ones_like(weights))
        first = jax.random.bits(key, dtype=jnp.uint32) & jnp.uint32(ticks(count) - 1)
        return urn.at(first, count, weights.dtype)

    def shares(self, weights: jax.Array, count: int) -> jax.Array:
        """min(1, t ((1 - uniform) weights + uniform / n)), with t such that their sum is `count`."""
        size, dtype = len(weights), weights.dtype
        if count == size:
            return jnp.ones(size, dtype)
        uniform, total = jnp.asarray(self.uniform, dtype), jnp.sum(weights)
        part = jnp.where(total > 0, weights / jnp.where(total > 0, total, 1), 1 / size)
        wanted = (1 - uniform) * part + uniform / size

        def rise(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            factor, _ = state
            full = factor * wanted >= 1
            rest = jnp.sum(jnp.where(full, 0, wanted))
            new = (count - jnp.sum(full, dtype=dtype)) / jnp.where(rest > 0, rest, 1)
            return jnp.maximum(factor, new), new > factor

        start = jnp.asarray(count, dtype), jnp.array(True)
        factor, _ = jax.lax.while_loop(lambda state: state[1], rise, start)
        return jnp.minimum(factor * wanted, 1)


class Owed(NamedTuple):
    """Losses seen since the weights last moved.

    The sum over these steps of  rate ([i drawn] (F_i - c_i) / share_i + c_i),  with c_i as it was in each of them, is
    rate_sum c_i + rest_i  with today's c_i: it changes for visited tasks only.
    """

    last: InOrder[jax.Array]  # c_i, the loss at the last visit
    rest: InOrder[jax.Array]
    rate: jax.Array  # the sum of the rates
    steps: jax.Array  # how many

    @classmethod
    def start(cls, losses: jax.Array) -> Owed:
        """Nothing is owed yet."""
        zero = jnp.zeros((), losses.dtype)
        return cls(InOrder(losses), InOrder(jnp.zeros_like(losses)), zero, jnp.zeros((), jnp.int32))

    def see(self, index: jax.Array, share: jax.Array, losses: jax.Array, rate: jax.Array) -> Owed:
        """One step more, in which the tasks at `index` had these losses."""
        last, total = self.last.value, self.rate + rate
        before = last[index]
        change = losses - before
        # A task that is there twice has one row, which is set, and two parts of the estimate, which are added.
        rest = self.rest.value.at[index].set(self.rest.value[index] - total * change)
        rest = rest.at[index].add(rate * change / share)
        # The sum is the losses. By themselves they could be written before the rows are read, and all would be copied.
        return Owed(InOrder(last.at[index].set(before + change)), InOrder(rest), total, self.steps + 1)

    def losses(self) -> jax.Array:
        """The mean of the estimated losses, weighted by the rates; the weights move by it times their sum."""
        some = self.rate > 0
        return self.last.value + jnp.where(some, self.rest.value / jnp.where(some, self.rate, 1), 0)

    def paid(self) -> Owed:
        """After the weights have moved."""
        return Owed.start(self.last.value)


@part
class Fresh(Sampling):
    """`tasks` new tasks of a `bl.TaskDistribution` in every step, which are thrown away after it.

    With x^k and what is shared (the optimiser of x, rates, directions that are followed), step k is

        (1)  m tasks are drawn; y_i starts at the y that was given to `solve`, v_i and all else that belongs to a task
             as in a first step
        (2)  `catch_up` times the solver's own step with x held where it is: X is {x^k} here, and what belongs to tasks
             moves
        (3)  the tasks are weighed, by losses on rows that nothing else sees (`bl.weightings.CVaR`), or equally
        (4)  the solver's own step, in which x moves; what is shared is kept, all else is not

    So a task gets (catch_up + 1) times the lower steps of the solver's step, and v_i, where a solver tracks it, as many
    steps of its own. What they leave undone is a bias of the direction that more steps of x do not mend. y_i of (4)
    is that of the x that moves, as nothing is older than the step. Chosen lower rates do not decay in (2).
    Memory and time of a step do not depend on how many tasks were seen.

    Rates: `bl.rates.Measured`, the default of most solvers, clips directions at twice their usual length. Where few
    tasks have long ones, as tails have, that moves the solution: with exponentially distributed targets x ended at
    1.057 +- 0.003 in place of 1.075, and with `RandomNeumann`, whose directions are mostly 0 and rarely ten times as
    long, at 0.917 +- 0.008. With rates that were given and fall it ended at 1.0748 +- 0.0011 and 1.0750 +- 0.0037.
    `Tandem` does not clip.

    Solvers that compare two points of the same tasks (`MRBO`, `SUSTAIN`, `SPABA`, `SRBA`, `STABLE`, `FSLA`, `VRBO`)
    need tasks that are there in the next step too, and `SABA` tables of their rows: they are refused, as are trackers
    with one direction a task. Of weightings, those that follow a task from step to step are.

    Args:
        tasks: m.
        catch_up: steps of a new task before the one that counts.

    References: starting every task anew is what double-loop methods for contextual bilevel problems do: Hu, Wang, Xie,
    Krause, Kuhn, "Contextual stochastic bilevel optimization", NeurIPS 2023. For tracked v_i and CVaR it is an
    extension of ours, without a theorem.

    >>> import bilevel as bl
    >>> bl.MORBiT(sampling=bl.sampling.Fresh(64), weighting=bl.weightings.CVaR(0.1)).sampling
    Fresh(tasks=64, catch_up=10)
    """

    tasks: int
    catch_up: int = 10

    draws = False  # of the tasks that a problem has, it takes none
    fresh = True

    def check(self, sizes: Sequence[int]) -> None:
        """Two counts."""
        values.whole("tasks", self.tasks, of="Fresh")
        values.whole("catch_up", self.catch_up, least=0, of="Fresh")

    def counts(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """There is one group."""
        return (self.tasks,)

    def draw(self, urn: Any, weights: jax.Array, count: int, key: jax.Array) -> Draw:
        """There is nothing to draw from: tasks are made."""
        raise NotImplementedError("Fresh draws from a bl.TaskDistribution, and not from the tasks of a problem.")
