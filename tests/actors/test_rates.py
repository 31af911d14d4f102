"""What calls teach of a decode step: its seconds over the rows in it."""

import pytest

from actors.placement import Load
from actors.rates import EngineLoad, StepFit
from search.types import Cost, Outcome, Sample, Score

SAMPLE = Sample("abcd", (1, 2, 3, 4), "step")


@pytest.mark.parametrize(("rows", "room"), [(1, 1), (2, 1), (64, 18)])
def test_a_new_engine_may_always_be_given_a_row(rows, room):
    """Else one that decodes a single row would never get any, and so never more."""
    load = EngineLoad()
    load.begin_slowly(Load())
    assert load.room(rows, concurrent=True) == room


def test_a_line_through_steps_of_many_sizes_is_found():
    fit = StepFit()
    for number in range(400):
        rows = 8 + 56 * (number % 2)
        fit.add(0.015 + 0.0004 * rows, rows, 0.1 if number else 1.0)
    assert fit.slope == pytest.approx(0.0004, rel=0.15)
    assert fit.mean_s - fit.slope * fit.mean_rows == pytest.approx(0.015, rel=0.15)


def test_the_slope_stays_between_nothing_and_a_rows_share_of_the_step():
    falling, steep = StepFit(), StepFit()
    for number in range(100):
        rows = 8 + 56 * (number % 2)
        falling.add(0.1 - 0.001 * rows, rows, 0.1 if number else 1.0)
        steep.add(0.01 * rows - 0.05, rows, 0.1 if number else 1.0)
    assert falling.slope == 0.0
    assert steep.slope == pytest.approx(steep.mean_s / steep.mean_rows)


def test_sent_rows_are_followed_over_time():
    load = EngineLoad()
    load.send(4, 0.0)
    load.send(8, 2.0)
    load.send(-4, 3.0)
    assert load.row_seconds_until(5.0) == 4 * 2.0 + 12 * 1.0 + 8 * 2.0
    assert (load.sent_rows, load.calls) == (8, 1)


def test_an_engine_slow_at_scoring_alone_begins_anew_as_a_typical_one():
    load, typical = EngineLoad(), Load(score_s=0.01)
    load.learn_scores([Score("a", 0.5, cost=Cost(seconds={"score": 1.0}))])
    load.learn([Outcome("a", "p", "r", (SAMPLE,), "e", Cost(seconds={"decode": 0.1}))], rows=1)
    assert load.score_s > 0.5 and load.slower_than(typical)
    load.begin_slowly(typical)
    assert load.score_s == 0.01 and not load.slower_than(typical)
    load.learn_scores([Score("a", 0.5, cost=Cost(seconds={"score": 0.02}))])
    assert load.question_s == pytest.approx(0.02)
