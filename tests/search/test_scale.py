"""Scores of one problem on one scale."""

from search.scale import Scale


def test_the_worst_is_0_the_best_1_and_the_rest_between():
    scale = Scale()
    assert scale.widen([0.4, 0.6, 0.5]) is True
    assert (scale.of(0.4), scale.of(0.6)) == (0.0, 1.0) and abs(scale.of(0.5) - 0.5) < 1e-9
    assert scale.widen([0.45]) is False
    assert scale.widen([0.9]) is True
    assert scale.of(0.4) == 0.0 and abs(scale.of(0.65) - 0.5) < 1e-9


def test_equal_scores_say_nothing():
    scale = Scale()
    scale.widen([0.7, 0.7])
    assert scale.of(0.7) == 0.5
    assert scale.widen([]) is False
