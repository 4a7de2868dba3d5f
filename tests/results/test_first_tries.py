"""What summaries say of the four problems of benchmarks/first_tries.py, tried as a new user would."""

import sys
from pathlib import Path

import pytest

import bilevel as bl

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tries():
    """The benchmark as a module, and its results, each made once."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    try:
        import first_tries
    finally:
        sys.path.pop(0)
    made = {}

    def result(*which):
        return made.setdefault(which, first_tries.run(*which)) if which not in made else made[which]

    return result


@pytest.mark.parametrize("name", ["letters", "digits", "clinics"])
def test_overfitting_is_what_is_said_of_few_rows(tries, name):
    result = tries(name)
    assert result.last.test_worst > 3 * result.worst
    first = result.findings[0]
    assert first.kind == result.verdict == "overfitting"
    assert first.numbers["worst test task"] == result.last.test_worst_task
    assert "bl.split" in str(first)
    kinds = {found.kind for found in bl.check_result(result)}
    assert not kinds & {"lower level lags", "still falling", "noisy end", "lucky best"}  # which would point elsewhere


@pytest.mark.parametrize("name", ["digits", "clinics"])  # on letters the two are about as good
def test_selection_rows_choose_an_iterate_that_is_better_on_test_rows(tries, name):
    result = tries(name, 0, True)
    assert result.best_by == "selection"
    assert result.best.test_worst < 0.95 * result.last.test_worst
    words = "what x learnt is of no use on other rows" if name == "clinics" else "Take result.best"
    assert words in str(result.findings[0])


def test_500_tasks_converge_within_the_steps(tries):
    """In 1,000 steps, and four times as many are no better."""
    short, long = tries("many"), tries("many", 0, False, 4)
    assert short.status == long.status == "converged"
    assert not {finding.kind for finding in bl.check_result(short)} & {"lower level lags", "still falling"}
    assert abs(long.worst - short.worst) < 0.01 * short.worst
