"""Estimators with scikit-learn's conventions: one model for many tasks, judged by the worst of them.

`fit(X, y, task=...)` takes the task of each row beside its target, as scikit-learn's metadata. A pipeline, a search or
a cross-validation passes it on after `model.set_fit_request(task=True)` and the like. The estimators need scikit-learn
1.6 or newer, `pip install "bilevel[sklearn]"`, which is imported when the first of them is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bilevel.estimators.columns import column_transformer
    from bilevel.estimators.models import (
        RobustKernelClassifier,
        RobustKernelRegressor,
        RobustRepresentationClassifier,
        RobustRepresentationRegressor,
        load,
    )

__all__ = [
    "RobustKernelClassifier",
    "RobustKernelRegressor",
    "RobustRepresentationClassifier",
    "RobustRepresentationRegressor",
    "column_transformer",
    "load",
]

_MODULE_OF = {name: "columns" if name == "column_transformer" else "models" for name in __all__}


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
