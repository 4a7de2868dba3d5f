"""Runs made of numbers: what findings are computed from."""

import numpy as np

import bilevel as bl
from bilevel.problem.per_task import Names, TaskValues
from bilevel.results.history import History, Iterate
from bilevel.results.result import Stored


def made(validation, weights=None, rates=None, norms=None, travel=None, solver=None, fits=True, x=None, **roles):
    """A run with these losses (evaluations, tasks), a step 10 after the last; weights and rates constant if not given.

    `roles` may have selection and test losses. What the problem would say is in `stored`, without findings.
    """
    validation = np.asarray(validation, float)
    count, tasks = validation.shape
    weights = np.full((count, tasks), 1 / tasks) if weights is None else np.asarray(weights, float)
    moved = np.concatenate([[0.0], np.abs(np.diff(weights, axis=0)).sum(axis=1)])
    steps, flat = 10 * np.arange(count), np.full(count, 0.1)
    y = TaskValues(Names([f"task {i}" for i in range(tasks)]), [np.arange(tasks)], (np.zeros(tasks),))
    history = History(
        step=steps,
        seconds=flat,
        validation=validation,
        selection=roles.get("selection"),
        test=roles.get("test"),
        weights=weights,
        direction_norm=flat if norms is None else np.asarray(norms, float),
        upper_rate=flat if rates is None else np.asarray(rates, float),
        lower_rate=np.full((count, tasks), 0.1),
        weights_rate=flat,
        weights_travel=moved if travel is None else np.asarray(travel, float),
        weights_swing=np.zeros(count),
    )

    def iterate(k):
        own = {f"{role}_losses": column[k] for role, column in roles.items()}
        return Iterate(np.zeros(2) if x is None else x, y, weights[k], validation[k], **{"test_losses": None} | own)

    by = "selection" if "selection" in roles else "validation"
    chosen = int(np.argmin((roles["selection"] if by == "selection" else validation).max(axis=1)))
    return bl.Result(
        problem=None,
        solver=bl.MORBiT() if solver is None else solver,
        last=iterate(-1),
        best=iterate(chosen),
        random=iterate(0),
        average=iterate(-1),
        history=history,
        status="finished",
        message="",
        steps=int(steps[-1]),
        seconds=1.0,
        seed=0,
        best_by=by,
        stored=Stored(None, None, fits),
    )


def alone(curve):
    """The losses of two tasks of which the first is the worst."""
    curve = np.asarray(curve, float)
    return np.stack([curve, curve / 2], axis=1)


def kinds(result):
    return [finding.kind for finding in result.findings]
