"""The paper's three experiments as its scripts run them, in plain numpy with gradients by hand.

Written from what the scripts do, apart from the library, so that the two can be held against each other. Arrays are
float64. Steps are numbered alike: 1 the lower level, 2 the upper losses, 3 x, 4 the weights, 5 the rates.
"""

from .fashion import Fashion
from .letter import Letter
from .sinusoids import Sinusoids

__all__ = ["Fashion", "Letter", "Sinusoids"]
