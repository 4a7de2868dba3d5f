"""Which tasks a step sees: all of them; m of n, so that what a step costs follows m; or m new ones of a distribution.

`Fresh` is for tasks from a distribution; see its docstring. The others draw m of a list of n tasks;
benchmarks/task_sampling.py measures how far the cost of a step then follows m only. With m of n tasks in a step,

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

y_i and v_i are of the x of their last visit, n / m steps ago. Two things are done about that:

- where tasks are visited every 512 steps or more rarely, and the rates of y are chosen, a visit begins with three more
  lower steps (`solvers/_base/catching_up.py`, which says what happens without);
- at the end every task is visited once more, with x as it is: in `result.last`, `best` and `average` every y_i is
  fitted to their x by ten steps of conjugate gradients on all training rows, a block of tasks at a time: 0.6 s for the
  three with 100,000 regressions of 16 rows, on two cores. `result.random` and the history are of the run as it was,
  and a run that is resumed goes on from there. With 10,000 sinusoids, 64 in a step, the worst tenth has a mean test
  loss of 0.08 with it and 0.29 without.

Where you give rates, a rate of x that is right with all tasks in every step may be too large. `MORBiT(lower_steps=10)`
lets a task catch up when it is visited. All its steps have the rate of the first one's rows: give rates with it, as on
the regressions of benchmarks/task_sampling.py, with 10,000 steps between two visits, chosen ones diverged with
`Tracked(steps=10)` and with `ConjugateGradient`.

What is not to be expected: that few visits find the worst of very many tasks. On these regressions, with six visits a
task, weights stay close to uniform (the ten heaviest of 16,000 tasks have 0.03 together), x is that of the mean loss,
and the largest loss of all tasks ends at about that of the first x with y fitted.

On several devices (`solve(devices=)`) each draws from its own tasks, from all of them equally many: of a group of which
c tasks are drawn and D devices have equal parts, each device draws c / D, rounded up, with shares in its own draw. So
the estimates stay unbiased, a step does equally much on every device, and no task moves between them.

Tasks in several groups: from each group a number of tasks is drawn that is proportional to its size, at least one.

Solvers whose recursion compares the last point with this one (`MRBO`, `SUSTAIN`, `SPABA`, `SRBA`, `STABLE`) look at the
same tasks at both. A task that was not in the last step has not moved since; what is followed task by task starts anew
there, and the matrices of `STABLE` are a running mean over its visits. `SPABA` and `SRBA` start afresh from a large
batch of the tasks that the step sees: unbiased, but with the noise of the draw, so that constant rates no longer end at
a solution exactly. `FSLA` and `VRBO` see all tasks: they take differences of tasks that they have just moved, where a
draw cannot stand for those that it did not move.

Reference: the estimate with a table is that of SAGA (Defazio, Bach, Lacoste-Julien, NeurIPS 2014), here over tasks;
systematic sampling with unequal probabilities is Madow's, "On the theory of systematic sampling, II", 1949. For
min-max bilevel problems both are an extension of ours, without a theorem.
"""

from bilevel.sampling.all import All
from bilevel.sampling.base import Sampling
from bilevel.sampling.fresh import Fresh
from bilevel.sampling.mixture import Mixture
from bilevel.sampling.uniform import Uniform

__all__ = ["All", "Fresh", "Mixture", "Sampling", "Uniform"]
