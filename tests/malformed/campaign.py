"""Gives wrong arguments and looks at what comes back: one of our errors, in words that name the argument, or not."""

import collections
import pathlib
import sys
import traceback
import warnings
from typing import NamedTuple

import jax
from hypothesis import HealthCheck, Phase, given, settings

import bilevel as bl
from malformed.cases import Case, all_cases

HOUSE = str(pathlib.Path(bl.__file__).parent)
OURS = (TypeError, ValueError, OSError, NotImplementedError)

_compiled = collections.Counter()
jax.monitoring.register_event_duration_secs_listener(
    lambda name, seconds, **_: _compiled.update([name]) if name.endswith("backend_compile_duration") else None
)


class Outcome(NamedTuple):
    """What became of one call."""

    kind: str  # "refused", or what is wrong
    text: str
    programs: int  # compiled meanwhile


def tell(case: Case, value) -> Outcome:
    """Makes the call."""
    before = sum(_compiled.values())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.use(value)
        kind, text = "accepted", ""
    except Exception as error:
        kind, text = _judge(error, case), f"{type(error).__name__}: {error}"
    return Outcome(kind, text, sum(_compiled.values()) - before)


def _judge(error, case):
    place = traceback.extract_tb(error.__traceback__)[-1]
    if not place.filename.startswith(HOUSE) or "raise" not in (place.line or "raise"):
        return f"raised in {pathlib.Path(place.filename).name}:{place.lineno}"
    if not isinstance(error, OURS):
        return f"a {type(error).__name__}"
    said = str(error)
    if not any(word in said for word in case.words):
        return "does not name the argument"
    return "refused" if len(said) < 2000 else "too long"


class Tally(NamedTuple):
    """What became of all examples of one case."""

    outcomes: collections.Counter
    wrong: dict[str, str]  # the first of each kind of outcome that is wrong
    compiling: int


def run(case: Case, examples: int) -> Tally:
    """So many examples of one case."""
    outcomes, wrong, compiling = collections.Counter(), {}, 0
    profile = settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )

    def one(value):
        nonlocal compiling
        outcome = tell(case, value)
        outcomes[outcome.kind] += 1
        compiling += outcome.programs > 0
        if outcome.kind != "refused":
            wrong.setdefault(outcome.kind, f"{value!r:.80} -> {outcome.text:.300}")

    profile(given(case.wrong)(one))()
    return Tally(outcomes, wrong, compiling)


def main(total: int, only: str = "") -> int:
    """Spreads so many examples over all cases, prints a line for each, and says how many ended wrongly."""
    cases = {name: case for name, case in all_cases().items() if only in name}
    each = max(1, -(-total // len(cases)))
    examples = failed = compiling = 0
    for name, case in cases.items():
        # A case with few wrong values runs out of them: hypothesis does not repeat itself.
        tally = run(case, each)
        count, bad = tally.outcomes.total(), tally.outcomes.total() - tally.outcomes["refused"]
        examples, failed, compiling = examples + count, failed + bad, compiling + tally.compiling
        print(f"{name:<40}{count:>6} examples{tally.outcomes['refused']:>6} refused{bad:>5} wrong", flush=True)
        for kind, text in tally.wrong.items():
            print(f"    {kind} ({tally.outcomes[kind]}): {text}", flush=True)
    print(f"{len(cases)} checks, {examples} examples, {failed} wrong, {compiling} compiled a program")
    return failed


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]) > 0)
