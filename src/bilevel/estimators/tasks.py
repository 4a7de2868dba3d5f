"""Labels of tasks, as users give them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import numpy as np

from bilevel.estimators.heads import Head

ONLY = "all"  # the name of the task where there is no other


def numbered(where: str, task: Any, count: int, needed: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The different labels, sorted, and the number of each row's own.

    >>> numbered("fit", ["b", "a", "b"], 3)
    (array(['a', 'b'], dtype='<U1'), array([1, 0, 1]))
    """
    if task is None and not needed:
        return np.array([ONLY]), np.zeros(count, int)
    found = np.asarray(task)
    if found.shape != (count,):
        raise ValueError(
            f"{where}(task=...) has shape {found.shape}: it needs the label of each row's task, {count} in all."
        )
    if found.dtype.kind in "fcO":
        missing = [i for i, label in enumerate(found.tolist()) if label is None or label != label]
        if missing:
            raise ValueError(
                f"{where}(task=...) is missing in {len(missing)} rows, first in row {missing[0]}: it needs a label for "
                "each; leave these rows out, or give them a label of their own."
            )
    kinds = {type(label) for label in found.tolist()} if found.dtype.kind == "O" else set()
    if len(kinds) > 1 or not kinds <= {str, int, float, bool}:
        shown = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise TypeError(f"{where}(task=...) has labels of type {shown}: it needs texts or numbers, of one type.")
    found = np.array(found.tolist()) if kinds else found  # text of pandas is of the type object
    labels, number = np.unique(found, return_inverse=True)
    return labels, number


def heads_of(owner: str, heads: Mapping[Any, Head], labels: np.ndarray, given: bool) -> list[Head]:
    """The head of each label."""
    if not given:
        if len(heads) > 1:
            raise ValueError(
                f"{owner} was fitted with {len(heads)} tasks: predict(task=...) needs the label of each row's task."
            )
        return list(heads.values())
    unknown = [label for label in labels.tolist() if label not in heads]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), [str(label) for label in heads], n=1, cutoff=0.85)
        meant = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"{owner}.predict(task=...) has {unknown[0]!r}, which it was not fitted with: adapt(X, y, "
            f"task={unknown[0]!r}) fits a new task from some rows of it.{meant}"
        )
    return [heads[label] for label in labels.tolist()]


def joined(where: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Labels, and more of them."""
    if {old.dtype.kind, new.dtype.kind} in ({"U"}, set("if")) or old.dtype.kind == new.dtype.kind:
        return np.unique(np.concatenate([old, new]))
    raise TypeError(
        f"{where}: the labels so far are of type {old.dtype.name}, and it got {new.dtype.name}: it needs one type."
    )
