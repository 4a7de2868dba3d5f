"""Where the numbers of a run go while it runs: `solve(..., loggers=[...])`.

`Progress` appends JSON lines to a file, which `bilevel watch` shows; `TensorBoard`, `MLflow` and `WandB` write for the
tools of these names, each with an extra of the package. `Logger` is the base to write one's own from.
"""

from bilevel.loggers.base import Facts, Logger
from bilevel.loggers.evaluation import Evaluation
from bilevel.loggers.mlflow_store import MLflow
from bilevel.loggers.progress import Progress
from bilevel.loggers.tensorboard_events import TensorBoard
from bilevel.loggers.wandb_offline import WandB

__all__ = ["Evaluation", "Facts", "Logger", "MLflow", "Progress", "TensorBoard", "WandB"]
