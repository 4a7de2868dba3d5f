"""What is asked of a logger."""

from __future__ import annotations

import importlib.util
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bilevel.loggers.evaluation import Evaluation


class Facts(NamedTuple):
    """What is known of a run before its first step."""

    title: str  # the name of the solver
    solver: str  # all of it
    seed: int
    steps: int
    tasks: tuple[str, ...]
    version: str  # of bilevel
    comparable: bool = True  # whether a lower loss is a better iterate
    step: int = 0  # where it starts: more than 0 where a run is resumed
    folder: str | None = None  # of the run, where it has one


class Logger(ABC):
    """Receives what one run does: its start, each evaluation, what happens in between, and its end.

    The calls of one run come from one thread, in this order. A logger that raises is switched off with a warning, and
    the run goes on: what is watched must not depend on who watches.

    >>> import bilevel as bl
    >>> class Printed(bl.loggers.Logger):
    ...     def log(self, row):
    ...         print(row.step, f"{row.worst:.3f}")
    >>> known = bl.problems.opposed_slopes()
    >>> solver = bl.MORBiT(0.1, 0.5, weighting=bl.weightings.SimplexAscent(0.1))
    >>> _ = bl.solve(known.problem, solver, known.x, steps=4, every=2, progress=False, loggers=[Printed()])
    0 ...
    2 ...
    4 ...
    """

    def start(self, facts: Facts) -> None:  # noqa: B027  (nothing to do is a fair answer)
        """The run is about to take a step; a resumed run says so by `facts.step`."""

    @abstractmethod
    def log(self, row: Evaluation) -> None:
        """The run was evaluated."""

    def event(self, kind: str, facts: Mapping[str, Any]) -> None:  # noqa: B027
        """Something happened: "checkpoint", "divergence" or "problem", with its step and what else is to be said.

        Before the end there is a "finding" for each of `Result.findings`, with its kind and, as its message, its text.
        """

    def end(self, status: str, message: str) -> None:  # noqa: B027
        """The run ended: with the status of its result, such as "finished", or "failed" where an exception ended it."""

    def for_run(self, seed: int) -> Logger:
        """The logger of one run of several, which are in threads of their own."""
        raise NotImplementedError(
            f"solve(loggers=...) with seeds needs loggers with for_run(seed), and {type(self).__name__} has none."
        )


def plain_names(names: Sequence[str], refused: str, letters: int = 200) -> dict[str, str]:
    r"""Names by which a store takes the tasks: what it refuses becomes "_", and what is the same then gets a number.

    >>> plain_names(["north", "a+b", "a*b"], r"[^\w]")
    {'north': 'north', 'a+b': 'a_b', 'a*b': 'a_b-2'}
    """
    found: dict[str, str] = {}
    taken: set[str] = set()
    for i, name in enumerate(names):
        plain = re.sub(refused, "_", name[:letters]) or "_"
        while plain in taken:
            plain = f"{plain}-{i}"
        taken.add(plain)
        found[name] = plain
    return found


def require(logger: str, module: str, extra: str) -> None:
    """Raises where a package is not installed, without importing it, which may take seconds."""
    if importlib.util.find_spec(module) is None:
        raise ImportError(f"bl.loggers.{logger} needs {module}: pip install 'bilevel[{extra}]'")
