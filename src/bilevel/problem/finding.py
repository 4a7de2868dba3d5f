"""One finding about a problem."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ProblemFinding:
    """One finding about a problem: a fault, or something worth knowing.

    Attributes:
        text: what was found.
        advice: what to do about it; "" where the text says so.
        task: the task it was found in; None = the problem as a whole.
        fault: whether it is wrong, rather than worth knowing.
        suspect: whether it may be a mistake, though not for certain: `solve` warns.
        prevents_losses: whether the losses cannot be evaluated because of it.
        error: what `solve` raises.
    """

    text: str
    advice: str = ""
    task: str | None = None
    fault: bool = True
    suspect: bool = False
    prevents_losses: bool = True
    error: type[Exception] = ValueError

    def __str__(self) -> str:
        where = "" if self.task is None else f"task {self.task!r}: "
        return f"{where}{self.text}" + (f": {self.advice}." if self.advice else "")
