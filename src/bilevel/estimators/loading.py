"""Reads an estimator of any of the classes here."""

from __future__ import annotations

from typing import Any

from bilevel._core.files import FilePath
from bilevel.estimators import files
from bilevel.estimators.base import Robust
from bilevel.estimators.kernel import RobustKernelClassifier, RobustKernelRegressor
from bilevel.estimators.representation import RobustRepresentationClassifier, RobustRepresentationRegressor

CLASSES: dict[str, type[Robust]] = {
    kind.__name__: kind
    for kind in (
        RobustKernelClassifier,
        RobustKernelRegressor,
        RobustRepresentationClassifier,
        RobustRepresentationRegressor,
    )
}


def load(path: FilePath, **parameters: Any) -> Any:
    """A fitted estimator, of whichever class `save` wrote.

    Args:
        path: of the file.
        **parameters: those that a file cannot hold, such as `network`, a model like the one that was fitted.

    Raises:
        ValueError: the file is damaged, or says what cannot be true.
    """
    name = files.class_of(path)
    if name not in CLASSES:
        raise ValueError(f"load({str(path)!r}): it holds a {name!r:.60}, and it needs one of {', '.join(CLASSES)}.")
    return files.load(CLASSES[name], path, parameters)
