"""Propositions 1 to 3: how much worse tasks may do on new data than on the data that x was chosen on.

F_i is a task's expected loss, hat F_i its mean over m_i batches, R the Rademacher complexity of the losses that the
candidates x can produce. Batches are pairs of a training and a validation part, y is fitted to the former.

Two slips of the paper matter here, and are mended:

- Its signs are +-1/2, where the statement it quotes (Mohri et al., Theorem 3.3) has +-1. That halves R, so with such an
  R the factor 2 in front of it would have to be 4. Here signs are +-1 and the factor is 2.
- |l| <= B_l lets a loss range over 2 B_l, and McDiarmid's inequality asks for the range. Here `width` is how wide the
  range of the losses is: B_l for losses in [0, B_l], as nearly all are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from bilevel._core import values


class Rademacher(NamedTuple):
    """An empirical Rademacher complexity, by Monte Carlo."""

    value: float
    error: float  # standard error of the value


def rademacher_complexity(losses: ArrayLike, samples: int = 1000, seed: int = 0) -> Rademacher:
    """E over signs of max over candidates of 1/m sum_j sign_j loss_j, for a finite family of x, on the data at hand.

    Args:
        losses: of shape (candidates, rows): the loss of every candidate x on every batch, each with its own y*.
        samples: how many draws of the signs.
        seed: of the signs.

    Every draw is used with both its signs, so that a single candidate has complexity 0 exactly. It is the complexity on
    these rows, where the propositions have its mean over data: see `observed` there. What holds for a finite family
    says nothing of all x in X.

    >>> rademacher_complexity([[0.2, 0.7, 0.1]]).value
    0.0
    """
    losses = values.numbers_of("losses", losses, of="rademacher_complexity")
    if losses.ndim != 2 or not losses.size or not np.all(np.isfinite(losses)):
        raise ValueError(
            f"rademacher_complexity(losses=...) got shape {losses.shape}: it needs finite numbers of shape "
            "(candidates, rows)."
        )
    values.whole("samples", samples, of="rademacher_complexity")
    values.whole("seed", seed, least=0, of="rademacher_complexity")
    generator = np.random.default_rng(int(seed))
    rows = losses.shape[1]
    largest = np.empty(samples)
    for k in range(samples):  # one draw at a time: samples x rows numbers may be many
        correlation = losses @ generator.choice([-1.0, 1.0], size=rows) / rows
        largest[k] = (correlation.max() - correlation.min()) / 2
    return Rademacher(float(largest.mean()), float(largest.std(ddof=1) / samples**0.5) if samples > 1 else math.inf)


def seen_task_bound(
    loss: float, complexity: float, width: float, rows: int, risk: float = 0.05, *, observed: bool = False
) -> float:
    """Proposition 1: F_i(x) <= hat F_i(x) + 2 R + width sqrt(log(1/risk) / 2m), for all x at once.

    Args:
        loss: hat F_i(x), the mean over the batches.
        complexity: R, with signs +-1.
        width: of the range of the losses (B_l where they are in [0, B_l]).
        rows: how many batches (m_i).
        risk: delta; the bound fails with at most this probability.
        observed: whether R was measured on the same batches, as `rademacher_complexity` does, instead of being its mean
            over data; the last term is then 3 width sqrt(log(2/risk) / 2m).

    >>> round(seen_task_bound(0.3, 0.05, 1.0, 200, risk=0.1), 4)
    0.4759
    """
    values.whole("rows", rows)
    _check_risk(risk)
    values.number("loss", loss)
    values.number("complexity", complexity, least=0)
    values.number("width", width, least=0)
    deviation = 3 * math.sqrt(math.log(2 / risk)) if observed else math.sqrt(math.log(1 / risk))
    return float(loss + 2 * complexity + width * deviation / math.sqrt(2 * rows))


def worst_task_bound(
    losses: ArrayLike,
    complexities: ArrayLike,
    width: float,
    rows: ArrayLike,
    risk: float = 0.05,
    *,
    observed: bool = False,
) -> float:
    """Proposition 2: max_i F_i(x) <= max_i hat F_i(x) + 2 R + width sqrt(log(n/risk) / 2m), for all x at once.

    Complexities and rows are one for all tasks, as in the paper, or one each: then it is the largest of the tasks' own
    bounds at risk/n. Arguments as for `seen_task_bound`.
    """
    return float(np.max(_each(losses, complexities, width, rows, risk, observed)))


def unseen_task_bound(
    losses: ArrayLike,
    complexities: ArrayLike,
    width: float,
    rows: ArrayLike,
    mixture: ArrayLike,
    risk: float = 0.05,
    *,
    observed: bool = False,
) -> float:
    """Proposition 3: F_{n+1}(x) <= max_i hat F_i(x) + sum_i a_i (2 R_i + width sqrt(log(n/risk) / 2 m_i)).

    The new task's pairs of training and validation batches come from those of the seen tasks, each pair as a whole from
    task i with probability a_i. A task whose every batch has rows of two seen tasks is not of this kind.

    Args:
        losses: hat F_i(x) of every seen task.
        complexities: R_i, one for all or one each.
        width: of the range of the losses.
        rows: m_i, one for all or one each.
        mixture: a, on the simplex.
        risk: delta.
        observed: as for `seen_task_bound`.
    """
    losses, mixture = values.numbers_of("losses", losses), values.numbers_of("mixture", mixture)
    if mixture.shape != losses.shape or np.any(mixture < 0) or not math.isclose(mixture.sum(), 1, rel_tol=1e-5):
        raise ValueError(
            f"unseen_task_bound(mixture={mixture!r}): it needs {losses.size} numbers, 0 or more, that sum to 1."
        )
    each = _each(losses, complexities, width, rows, risk, observed)
    return float(np.max(losses) + mixture @ (each - losses))


def _each(
    losses: ArrayLike, complexities: ArrayLike, width: float, rows: ArrayLike, risk: float, observed: bool
) -> np.ndarray:
    """Every task's own bound, such that all hold together: a union bound."""
    losses = values.numbers_of("losses", losses)
    if losses.ndim != 1 or not losses.size:
        raise ValueError(f"losses got shape {losses.shape}: it needs one number for each task.")
    _check_risk(risk)  # its share for each task would be a probability even where it is not
    own = []
    for name, given in (("complexities", complexities), ("rows", rows)):
        values.numbers_of(name, given)
        if np.shape(given) not in ((), losses.shape):
            raise ValueError(
                f"{name} got shape {np.shape(given)}: it needs one number, or one for each of the {losses.size} tasks."
            )
        own.append(np.broadcast_to(given, losses.shape).tolist())
    terms = zip(losses.tolist(), *own, strict=True)
    return np.array([seen_task_bound(f, R, width, m, risk / losses.size, observed=observed) for f, R, m in terms])


def _check_risk(risk: float) -> None:
    values.number("risk", risk, above=0, below=1)
