"""What happens to a run that diverges: `solve(..., on_divergence=...)` takes any of them.

What happened is in `Result.divergences`, whichever it was.
"""

from bilevel.divergence.base import Policy
from bilevel.divergence.raising import Diverged, Raise
from bilevel.divergence.smaller_rates import SmallerRates
from bilevel.divergence.stop import Stop
from bilevel.results.divergences import Divergence

__all__ = ["Diverged", "Divergence", "Policy", "Raise", "SmallerRates", "Stop"]
