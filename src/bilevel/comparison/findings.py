"""What a comparison shows that should be known before its ranks are believed."""

from __future__ import annotations

from collections.abc import Sequence

from bilevel.comparison.table import Row
from bilevel.comparison.tuning import AUTOMATIC
from bilevel.results.findings.finding import Finding


def found(rows: Sequence[Row]) -> tuple[Finding, ...]:
    """Of a table: ties for the first place, and rates that end where their grid does."""
    checks = (ties(rows), edges(rows))
    return tuple(finding for finding in checks if finding is not None)


def ties(rows: Sequence[Row]) -> Finding | None:
    """Solvers that seeds do not tell from the first."""
    tied = [f"{row['solver']}{', automatic' * (row['rates'] == AUTOMATIC)}" for row in rows if row["ties_with_first"]]
    if len(tied) < 2:
        return None
    return Finding(
        "tie",
        f"Tie for the first place (the same place, or intervals that overlap): {'; '.join(tied)}. "
        "More seeds tell more.",
        {"solvers": len(tied)},
    )


def edges(rows: Sequence[Row]) -> Finding | None:
    """Tuned rates beyond which better ones may lie."""
    own = sorted({f"{row['solver']}: {row['at_edge']}" for row in rows if row["at_edge"]})
    if not own:
        return None
    words = f"Rates that are the largest or smallest that were tried: {'; '.join(own)}."
    still = [row for row in rows if "smallest x" in str(row["at_edge"])]
    others = any(str(row["at_edge"]) != "smallest x" for row in rows if row["at_edge"])
    if still:
        words += " Where that is the smallest x, the less x moved the better: on these rows it learns nothing of use."
    if others:
        words += " Beyond them may be better ones: give a wider bl.Grid."
    return Finding(
        "edge of the grid",
        words,
        {row["solver"]: row["at_edge"] for row in rows if row["at_edge"]},  # type: ignore[misc]
    )
