"""Pictures of results: losses over the steps, task weights, and every task's final loss.

Nothing here touches pyplot: a figure is made, drawn and saved without a display and without global state. Matplotlib is
imported when a picture is drawn.
"""

from bilevel.results.plots.figure import check_path, plot

__all__ = ["check_path", "plot"]
