"""Estimators with scikit-learn's conventions: a model for many tasks that is judged by the worst of them.

`fit(X, y, task=...)` takes the task of each row beside its target, as scikit-learn's metadata: through a pipeline, a
search or a cross-validation it is routed by `model.set_fit_request(task=True)` and the like. They need scikit-learn
1.6 or newer, `pip install "bilevel[sklearn]"`, which is imported with the first of them that is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bilevel.estimators.columns import column_transformer
    from bilevel.estimators.kernel import RobustKernelClassifier, RobustKernelRegressor
    from bilevel.estimators.loading import load
    from bilevel.estimators.representation import RobustRepresentationClassifier, RobustRepresentationRegressor

__all__ = [
    "RobustKernelClassifier",
    "RobustKernelRegressor",
    "RobustRepresentationClassifier",
    "RobustRepresentationRegressor",
    "column_transformer",
    "load",
]

_MODULE_OF = {
    "RobustKernelClassifier": "kernel",
    "RobustKernelRegressor": "kernel",
    "RobustRepresentationClassifier": "representation",
    "RobustRepresentationRegressor": "representation",
    "column_transformer": "columns",
    "load": "loading",
}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from sklearn.utils.validation import validate_data  # noqa: F401  (new in 1.6)
    except ImportError as error:
        needed = "bilevel.estimators needs scikit-learn 1.6 or newer: pip install 'bilevel[sklearn]'"
        raise ImportError(needed) from error
    found = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return list(__all__)
