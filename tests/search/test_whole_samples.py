"""Whole-sample strategies: when each stop rule ends the sampling, and what the votes weigh."""

import pytest

from search.types import Sample, Verdict


def draw(b, *answers, score=None, confidence=None):
    """Answer the next orders with these answers; None is a sample without one."""
    stream = iter(answers)
    asked = 0
    while orders := b.ask():
        for order in orders:
            value = next(stream)
            text = "I cannot say." if value is None else f"Answer: {value}"
            verdict = None if score is None else Verdict(score(asked), "t")
            b.tell(order, Sample(text, (1, 256), "eos", verdict=verdict))
            asked += 1
    return asked


@pytest.mark.parametrize(
    ("answers", "used"),
    [
        ("AAAAAAAAAAAA", 4),
        ("ABAAAAAAAAAA", 8),
        ("ABABAAAAAAAA", 8),
        ("AABBAABBAAAA", 12),
        ("AAABBBBAAABB", 12),
    ],
)
def test_the_window_rule_stops_at_the_first_full_window_of_one_answer(bench, answers, used):
    """Windows of 4, counted from the first sample (ESC): a run across two windows does not count."""
    values = [str("AB".index(a)) for a in answers]
    assert draw(bench("self_consistency", stop="window", window=4, wave=4, samples=12), *values) == used


def test_a_sample_without_an_answer_breaks_its_window(bench):
    b = bench("self_consistency", stop="window", window=2, wave=2, samples=6)
    assert draw(b, "1", None, None, None, "1", "1") == 6


def test_the_window_rule_does_not_depend_on_the_wave(bench):
    values = [*"121212121"]
    used = [draw(bench("self_consistency", stop="window", window=3, wave=wave, samples=9), *values) for wave in (1, 3)]
    assert used == [9, 9]


def test_no_rule_draws_every_sample(bench):
    assert draw(bench("self_consistency", stop="none", samples=10), *["1"] * 10) == 10


def test_case_28_the_beta_rule_stops_by_the_fourth_sample_and_a_split_uses_all(bench):
    assert draw(bench("self_consistency", samples=16), *["1"] * 16) == 4
    assert draw(bench("self_consistency", samples=16), *["1", "2"] * 8) == 16


def test_confidence_weighs_the_votes(bench):
    def chosen(vote):
        b = bench("self_consistency", samples=3, stop="none", vote=vote)
        confidences = iter([0.9, 0.4, 0.4])
        for order in b.ask():
            value = 1 if order.first_sample == 0 else 2
            b.tell(order, Sample(f"Answer: {value}", (1, 256), "eos", confidence=next(confidences)))
        return b.strategy.answer(b.tree)

    assert (chosen("majority").answer, dict(chosen("majority").votes)) == ("2", {"2": 2.0, "1": 1.0})
    assert (chosen("confidence").answer, dict(chosen("confidence").votes)) == ("1", {"1": 0.9, "2": 0.8})


def test_confidence_votes_need_an_engine_that_gives_it(lab):
    from engine.scripted import ScriptedEngine

    one = lab(ScriptedEngine(["Answer: 1"], capabilities=frozenset({"logprobs"})))
    with pytest.raises(ValueError, match="strategy 'self_consistency' needs confidence"):
        one.solve("self_consistency", options={"vote": "confidence"})


def test_best_of_n_answers_with_the_best_or_by_weight(bench):
    def chosen(choose):
        b = bench("best_of_n", samples=3, choose=choose)
        draw(b, "1", "2", "2", score=lambda i: [0.8, 0.5, 0.4][i])
        return b.strategy.answer(b.tree)

    assert (chosen("best").answer, chosen("best").reason) == ("1", "done")
    assert (chosen("vote").answer, dict(chosen("vote").votes)) == ("2", {"2": pytest.approx(0.9), "1": 0.8})


def test_best_of_n_stops_at_a_sample_that_is_good_enough(bench):
    b = bench("best_of_n", samples=12, wave=2, accept=0.9)
    assert draw(b, *[str(i) for i in range(12)], score=lambda i: 0.95 if i == 3 else 0.5) == 4
    chosen = b.strategy.answer(b.tree)
    assert (chosen.answer, chosen.reason, chosen.unused) == ("3", "accepted", {"samples": 8})


def test_a_sample_without_an_answer_is_never_accepted(bench):
    b = bench("best_of_n", samples=4, wave=2, accept=0.9)
    assert draw(b, None, None, "1", "2", score=lambda i: 0.95) == 4


def test_what_is_in_flight_is_unneeded_once_the_answer_is_sure(bench):
    b = bench("self_consistency", samples=16, wave=16)
    wave = b.ask()
    for i, order in enumerate(wave):
        ids = b.strategy.unneeded(b.tree)
        assert list(ids) == ([] if i < 4 else [later.id for later in wave[i:]])
        b.tell(order, Sample("Answer: 1", (1, 256), "eos"))
