"""Every bilevel solver, at constant rates with which it reaches the saddle point of the enclosing ball."""

import optax

import bilevel as bl
from bilevel.hypergradients import Exact, Neumann, Tracked
from bilevel.hypergradients.trackers import Momentum
from bilevel.weightings import SimplexAscent

SERIES = Neumann(41, lr=0.4)
PER_TASK = {"tracker": Momentum(per_task=True)}
SETTINGS = {  # (solver, steps): the rates of x and y, the estimator, the rate of the weights
    "ALSET": (bl.ALSET(0.1, None, SERIES, SimplexAscent(0.02), ratio=4.0), 1000),
    "AmIGO": (bl.AmIGO(0.1, 0.4, Tracked(0.4, steps=5), SimplexAscent(0.03), lower_steps=5), 800),
    "BSA": (bl.BSA(0.1, 0.4, SERIES, SimplexAscent(0.03)), 800),
    "FSLA": (bl.FSLA(0.1, 0.4, weighting=SimplexAscent(0.02), momentum=0.3), 1000),
    "MASOBA": (bl.MASOBA(0.05, 0.4, weighting=SimplexAscent(0.005), momentum=0.2), 2500),
    "MASOBA, per task": (bl.MASOBA(0.05, 0.4, weighting=SimplexAscent(0.005), momentum=0.5, **PER_TASK), 1500),
    "MORBiT": (bl.MORBiT(0.1, 0.4, Exact(), SimplexAscent(0.02)), 1000),
    "MORMASOBA": (bl.MORMASOBA(0.05, 0.4, weighting=SimplexAscent(0.005), momentum=0.5), 1500),
    "MRBO": (bl.MRBO(0.1, 0.4, Exact(), SimplexAscent(0.02), momentum=0.3), 1500),
    "SABA": (bl.SABA(0.05, 0.2, weighting=SimplexAscent(0.01)), 4000),
    "SOBA": (bl.SOBA(0.1, 0.4, weighting=SimplexAscent(0.02)), 4000),
    "SPABA": (bl.SPABA(0.05, 0.3, weighting=SimplexAscent(0.01)), 3000),
    "SRBA": (bl.SRBA(0.05, 0.3, weighting=SimplexAscent(0.01)), 3000),
    "STABLE": (bl.STABLE(0.1, 0.4, weighting=SimplexAscent(0.02)), 700),
    "SUSTAIN": (bl.SUSTAIN(0.1, 0.4, Exact(), SimplexAscent(0.02), momentum=0.3), 1500),
    "StocBiO": (bl.StocBiO(0.1, 0.4, SERIES, SimplexAscent(0.03)), 800),
    "TTSA": (bl.TTSA(0.1, 0.4, Exact(), SimplexAscent(0.02)), 1000),
    "Tandem": (bl.Tandem(0.1, 0.4, weighting=SimplexAscent(0.02), upper_rule=optax.sgd), 1500),
    "VRBO": (bl.VRBO(0.1, 0.4, SERIES, SimplexAscent(0.02)), 800),
}
