"""Loggers receive the numbers of a run while it runs: `solve(..., loggers=[...])`.

`Progress` appends JSON lines to a file, which `bilevel watch` shows; `TensorBoard`, `MLflow` and `WandB` write for the
tools of these names, each with an extra of the package. Inherit from `Logger` to write your own.
"""

from bilevel._run.loggers.base import Evaluation, Facts, Logger
from bilevel._run.loggers.progress import Progress
from bilevel._run.loggers.stores import MLflow, TensorBoard, WandB

__all__ = ["Evaluation", "Facts", "Logger", "MLflow", "Progress", "TensorBoard", "WandB"]
