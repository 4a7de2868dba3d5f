"""Which tasks a step sees: all of them, or m of n, so that what a step costs follows m.

benchmarks/task_sampling.py measures how far it does. With m of n tasks in a step,

- only these m move what is theirs (y_i, its optimiser, v_i, tables, curvature). A state has one row a task, so that
  this is written once for all solvers: the rows and the tasks are taken out, they are a problem of m tasks, the
  solver's own step is taken on it, and the rows are put back. The others are where their last visit left them;
- x moves along  sum_{i drawn} (weights_i / share_i) D_i,  where share_i is how often task i is drawn in a step on
  average: its mean is the direction of all tasks;
- the weights move by  c_i + [i drawn] (F_i - c_i) / share_i,  where c_i is the loss at the last visit of task i and F_i
  that of this step: its mean is F_i, and the better c_i is known, the smaller its variance. The weights of tasks that
  are not drawn move by c_i. What has still to be added to them is kept as a multiple of
  c_i plus a number that changes when a task is visited, so that a step writes m numbers here too.

The weights themselves move every n // (8 m) steps (every step where that is less than 2), by all that the steps in
between have seen: a move touches n numbers, and shared among those steps it costs less than m tasks do. A task is
visited every n / m steps, so that nothing waits long by comparison. Each weighting says what a move costs.

A rate of the weights that is chosen rather than given is multiplied by (m / n)^(3/2): by m / n, the share of the losses
that a step sees, and by (m / n)^(1/2), as the paper's gamma falls with n^(-1/2). A visit moves the weight of its task
alone, by what is noise of a batch as well, and the more tasks there are the smaller the weights: with m / n only,
weights on 10,000 sinusoids followed that noise, x followed them, and the run ended far above where it began.
A chosen rate of x is multiplied by m / n in solvers that move everything at once (`SOBA`, `SABA`, `MASOBA`,
`MORMASOBA`, `MRBO`, `SUSTAIN`, `SPABA`, `SRBA`), where x looks at y_i as its last visit left it. The others visit a
task, and then look at it.
Curvatures are measured of the tasks of one draw; the others start from the largest of these, and find their own when
they are visited.

Where you give rates: y_i and v_i are of the x of their last visit, n / m steps ago, so that a rate of x that is right
with all tasks in every step may be too large. `MORBiT(lower_steps=10)` lets a task catch up when it is visited; look at
the history, and at `result.best`.

Tasks in several groups: from each group a number of tasks is drawn that is proportional to its size, at least one.

Solvers whose recursion compares the last point with this one (`MRBO`, `SUSTAIN`, `SPABA`, `SRBA`, `STABLE`) look at the
same tasks at both. A task that was not in the last step has not moved since; what is followed task by task starts anew
there. `SPABA` and `SRBA` start afresh from a large batch of the tasks that the step sees: unbiased, but with the noise
of the draw, so that constant rates no longer end at a solution exactly. `FSLA` and `VRBO` see all tasks: they take
differences of tasks that they have just moved, where a draw cannot stand for those that it did not move.

Reference: the estimate with a table is that of SAGA (Defazio, Bach, Lacoste-Julien, NeurIPS 2014), here over tasks;
systematic sampling with unequal probabilities is Madow's, "On the theory of systematic sampling, II", 1949. For
min-max bilevel problems both are an extension of ours, without a theorem.
"""

from bilevel.sampling.all import All
from bilevel.sampling.base import Sampling
from bilevel.sampling.mixture import Mixture
from bilevel.sampling.uniform import Uniform

__all__ = ["All", "Mixture", "Sampling", "Uniform"]
