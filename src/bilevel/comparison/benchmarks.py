"""Problems to compare solvers on, by name."""

from __future__ import annotations

import difflib
import functools
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from bilevel.datasets import letter_pairs, sinusoids
from bilevel.hypergradients import Unrolled
from bilevel.paper import fashion, letter
from bilevel.problems import Ready, enclosing_ball, hyperparameters, noisy_ball, sinusoid_regression
from bilevel.solvers import MORBiT
from bilevel.weightings import SimplexAscent


class Contest(NamedTuple):
    """A problem drawn for each seed."""

    name: str
    title: str
    start: Callable[[int, str], Ready]  # the second argument, of experiments, is not used
    steps: int  # of what we recommend; their calls are the budget unless one is given
    require: Callable[[], Any] = lambda: None
    paper: Any = None  # MORBiT as the paper describes it, with its rates, where the paper has the problem
    paper_steps: int = 0  # how long the paper ran it


def _ball(seed: int, variant: str = "") -> Ready:
    known = enclosing_ball()
    return Ready(known.problem, known.x)


def _noisy(seed: int, variant: str = "") -> Ready:
    known = noisy_ball()
    return Ready(known.problem, known.x)


def _sinusoids(seed: int, variant: str = "") -> Ready:
    return sinusoid_regression(sinusoids(6, 2, seed=seed), seed=seed)


def _letter(seed: int, variant: str = "") -> Ready:
    return hyperparameters(letter_pairs(16, seed=seed, rows=letter.ROWS))


@functools.lru_cache(maxsize=1)  # it is large, and all rates are tried on one draw
def _fashion(seed: int, variant: str = "") -> Ready:
    return fashion.start(seed, "ours")


_waves = MORBiT(0.007, 0.005, Unrolled(), SimplexAscent(0.003, pull=3.0))

CONTESTS = {
    contest.name: contest
    for contest in (
        Contest("ball", "smallest enclosing ball, exact oracles", _ball, 500),
        Contest("noisy-ball", "smallest enclosing ball, noisy batches of finite data", _noisy, 2000),
        Contest("sinusoids", "six sinusoids share a network", _sinusoids, 5000, paper=_waves, paper_steps=20_000),
        Contest(
            "letter",
            "16 pairs of letters share hyperparameters",
            _letter,
            4000,
            paper=letter.described,
            paper_steps=letter.LETTER.steps,
        ),
        Contest(
            "fashion",
            "ten pairs of FashionMNIST classes share a layer",
            _fashion,
            1500,
            fashion.images,
            fashion.described,
            fashion.FASHION.steps,
        ),
    )
}


def contest(name: str) -> Contest:
    """The problem of this name, or an error that suggests the nearest."""
    if name in CONTESTS:
        return CONTESTS[name]
    near = difflib.get_close_matches(name, CONTESTS, 1, 0.3)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"compare(problem={name!r}): there is no such problem; there are {', '.join(CONTESTS)}.{hint}")


def fingerprint(ready: Ready, y: Any) -> str:
    """Eight letters that another problem, another start or other losses do not have."""
    known = hashlib.sha256()
    for leaf in jax.tree.leaves((ready, y)):
        if callable(leaf):
            known.update(_code(leaf))
        else:
            known.update(np.asarray(leaf).tobytes())
    for group in ready.problem.groups:
        for loss in (group.upper, group.lower):
            known.update(_code(loss))
    return known.hexdigest()[:8]


def _code(function: Any) -> bytes:
    """What a function does, as far as it can be told; for an object, its class."""
    code = getattr(function, "__code__", None)
    return type(function).__qualname__.encode() if code is None else code.co_code + repr(code.co_consts).encode()
