"""What is kept of every time that a run diverged."""

from __future__ import annotations

from typing import NamedTuple


class Divergence(NamedTuple):
    """One time that a run diverged, or lost what it had gained, and what was done then; plain data.

    Attributes:
        step: the step that broke, which is how many were finite.
        task: whose y or loss became infinite or NaN; None where it was what the tasks share.
        quantity: what did: "y", "loss", "direction", "x" or "weights"; "objective" where it rose far above its best.
        message: the same in words, and what was done.
        factor: what the rates were multiplied by, to go on; None = the run ended here.
        back_to: the step that it went on from; None likewise.
    """

    step: int
    task: str | int | None
    quantity: str
    message: str
    factor: float | None = None
    back_to: int | None = None

    @property
    def line(self) -> str:
        """In a few words."""
        what = self.quantity if self.task is None else f"{self.quantity} of task {self.task!r}"
        then = "ended" if self.factor is None else f"went on from step {self.back_to} with rates times {self.factor:g}"
        if self.quantity == "objective":
            return f"lost ground by step {self.step}: {then}"
        return f"diverged at step {self.step} ({what}): {then}"
