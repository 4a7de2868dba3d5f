"""At which number of trials a claim is judged."""

import pytest

from bilevel.studies.paper.claims import MISSING, Evidence, first_decision
from bilevel.studies.statistics import HOLDS, INCONCLUSIVE, REFUTED

OPEN = INCONCLUSIVE


@pytest.mark.parametrize(
    ("verdicts", "there", "most", "judged"),
    [
        ({10: HOLDS, 20: REFUTED}, 80, 80, (HOLDS, 10)),  # trials made for another claim change nothing
        ({10: OPEN, 20: OPEN, 40: REFUTED, 80: HOLDS}, 80, 80, (REFUTED, 40)),
        ({10: OPEN, 20: HOLDS}, 16, 80, (OPEN, 10)),  # in the middle of a round
        ({10: OPEN, 20: OPEN}, 7, 80, (OPEN, 7)),
        ({10: OPEN, 20: OPEN, 40: OPEN, 80: HOLDS}, 80, 40, (OPEN, 40)),
        ({10: OPEN, 20: OPEN, 40: OPEN, 80: OPEN}, 80, 80, (OPEN, 80)),
    ],
)
def test_the_first_whole_round_that_decides_counts(verdicts, there, most, judged):
    found = first_decision(lambda trials: Evidence("", verdicts[trials], min(trials, there)), most)
    assert (found.verdict, found.trials) == judged


def test_without_runs_there_is_nothing_to_judge():
    assert first_decision(lambda trials: MISSING, 80) == MISSING
