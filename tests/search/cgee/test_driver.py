"""Verify-skip in a search: what is saved, what is reported, and that unlike numbers never meet."""

import json

import pytest

from engine.base import Branch
from engine.scripted import ScriptedEngine
from engine.simulated import SimulatedEngine
from search.budget import Budget
from search.cgee.agreement import Agreement
from search.cgee.base import Draw, Skip
from search.cgee.calibrated import Calibrated
from search.cgee.gate import Gate
from search.cgee.off import Off
from search.cgee.paper import Paper
from search.estimate import estimate
from search.prompts import ANSWER_QUESTION, STEP_QUESTION
from search.strategies import registry
from search.strategies.selection import best_node
from search.types import Sampling
from tests.search.records import record

NAMES = ["greedy", "mcts", "self_consistency", "tot"]
ONE_WAVE = {"k": 3, "b": 1, "max_depth": 1}


def branch(text: str, confidence: float | None, finish: str = "eos") -> Branch:
    return Branch(tuple(text.encode()), text, finish, confidence=confidence)


def three(*confidences: float | None) -> ScriptedEngine:
    """Branches stating 1, 2 and 3; the verifier likes 3 best."""
    branches = [branch(f"Answer: {i + 1}", c) for i, c in enumerate(confidences)]
    return ScriptedEngine(lambda path, served: branches[served], judge=lambda path, q: int(path[-1][-1]) / 10)


def everything(found) -> dict:
    row = found.to_json()
    del row["seconds"]
    return row


@pytest.mark.parametrize("name", NAMES)
def test_off_leaves_results_identical(lab, name) -> None:
    without, off, unmet = (
        everything(lab(SimulatedEngine(depth=4)).solve(name, seed=3, gate=gate))
        for gate in (None, Gate(Off()), Gate(Agreement(agree_at=1.0)))
    )
    assert off.pop("skips")["skipped"] == unmet.pop("skips")["skipped"] == without.pop("skips")["skipped"] == 0
    assert off == without == unmet


def test_a_decisive_wave_is_not_verified(lab) -> None:
    one = lab(three(0.6, 0.95, 0.5))
    events = []
    budget = Budget(verifications=40)
    found = one.solve("tot", gate=Gate(Paper()), options=ONE_WAVE, budget=budget, on_event=events.append)
    assert (found.answer, found.stop_reason) == ("2", "done")
    assert one.count("score_calls") == 0 and found.cost.verified == 0
    assert found.unused["verifications"] == 40
    assert found.skips.to_json() == {
        "decisions": 1,
        "skipped": 1,
        "by_rule": {"paper": 1},
        "saved_verifications": 3,
        "saved_tokens": found.skips.saved_tokens,
        "audited": 0,
        "flips": 0,
        "trials": 0,
        "off": False,
    }
    (told,) = [event.data for event in events if event.kind == "skip"]
    assert told["rule"] == "paper" and told["verifications"] == 3
    node = found.tree.node("r.1")
    assert (node.score, node.standing) == (None, 0.95)
    assert node.reason == "cgee:paper skipped verification: top confidence 0.950, second 0.600"
    assert json.loads(json.dumps(found.to_json()))["tree"]["nodes"][2]["standing"] == 0.95


def test_saved_tokens_are_what_verifying_costs(lab) -> None:
    skipped = lab(three(0.6, 0.95, 0.5)).solve("tot", gate=Gate(Paper()), options=ONE_WAVE)
    verified = lab(three(0.6, 0.95, 0.5)).solve("tot", options=ONE_WAVE)
    assert skipped.skips.saved_tokens == verified.cost.verified > 0
    assert (skipped.answer, verified.answer) == ("2", "3")


def test_a_verifier_that_cannot_tell_its_cost_saves_unknown_tokens(lab) -> None:
    found = lab(three(0.6, 0.95, 0.5)).solve("tot", verifier=lambda p, t: 0.5, gate=Gate(Paper()), options=ONE_WAVE)
    assert (found.skips.saved_verifications, found.skips.saved_tokens) == (3, 0)


@pytest.mark.parametrize("confidences", [(0.70, 0.69, 0.1), (0.4, 0.1, 0.1), (0.95, None, 0.1)])
def test_an_open_wave_is_verified_in_full(lab, confidences) -> None:
    one = lab(three(*confidences))
    found = one.solve("tot", gate=Gate(Paper()), options=ONE_WAVE)
    assert (found.answer, one.count("scores")) == ("3", 3)
    assert (found.skips.decisions, found.skips.skipped, found.skips.saved_verifications) == (1, 0, 0)


def test_the_beam_goes_on_with_the_most_confident_of_a_skipped_wave(lab) -> None:
    def script(path, served):
        return (
            branch(f"Answer: {served}", 0.5)
            if path
            else branch("abc"[served] + "\n\n", (0.6, 0.9, 0.7)[served], "step")
        )

    found = lab(ScriptedEngine(script)).solve("tot", gate=Gate(Paper()), options={"b": 2, "k": 3, "max_depth": 2})
    assert {order.node_id for order in found.tree.asked.values()} == {"r", "r.1", "r.2"}
    assert found.tree.node("r.0").status == "pruned"


@pytest.mark.parametrize(
    ("score", "confidence", "answer"),
    [(0.99, 0.60, "9"), (0.10, 0.97, "7"), (0.10, 0.60, "9"), (0.99, 0.97, "7")],
)
def test_a_score_and_a_standing_are_never_compared(lab, score, confidence, answer) -> None:
    """7 was verified with `score`, 9 was skipped with standing 0.95: what both have is confidence, and that decides."""

    def script(path, served):
        if not path:
            return [branch("Answer: 7", confidence), branch("on\n\n", confidence, "step")][served]
        return [branch("Answer: 9", 0.95), branch("Answer: 8", 0.5)][served]

    engine = ScriptedEngine(script, judge=lambda path, q: score if "7" in path[-1] else 0.5)
    found = lab(engine).solve("tot", gate=Gate(Paper()), options={"b": 2, "k": 2, "max_depth": 2})
    seven, nine = found.tree.node("r.0"), found.tree.node("r.1.0")
    assert (seven.score, seven.standing, nine.score, nine.standing) == (score, None, None, 0.95)
    assert found.answer == answer


def test_votes_come_before_confidence_between_a_verified_and_a_skipped_branch(lab) -> None:
    def script(path, served):
        if not path:
            return [branch("Answer: 7", 0.60), branch("So: Answer: 7", 0.59), branch("on\n\n", 0.58, "step")][served]
        return [branch("Answer: 9", 0.95), branch("Answer: 8", 0.5), branch("Answer: 6", 0.5)][served]

    engine = ScriptedEngine(script, judge=lambda path, q: 0.2)
    found = lab(engine).solve("tot", gate=Gate(Paper()), options={"b": 3, "k": 3, "max_depth": 2})
    assert found.skips.skipped == 1 and found.answer == "7"


def test_nodes_of_one_kind_compare_among_themselves(bench) -> None:
    from search.types import Sample, Verdict

    b = bench("tot", k=3)
    told = [
        Sample("Answer: 1", (1,), "eos", confidence=0.9, verdict=Verdict(0.3, "v")),
        Sample("Answer: 2", (2,), "eos", confidence=0.1, verdict=Verdict(0.6, "v")),
        Sample("Answer: 3", (3,), "eos", confidence=0.5, verdict=Verdict(None, "v", error="no idea")),
    ]
    b.tell(b.ask()[0], *told)
    nodes = b.tree.complete()
    assert best_node(b.tree, nodes).id == "r.1"
    assert best_node(b.tree, [nodes[2]]).id == "r.2"


@pytest.mark.parametrize("name", ["mcts"])
def test_a_strategy_that_averages_scores_is_verified_in_full_under_a_rule_that_orders_a_wave(lab, name) -> None:
    plain = lab(SimulatedEngine(depth=4)).solve(name)
    found = lab(SimulatedEngine(depth=4)).solve(name, gate=Gate(Paper()))
    assert found.tree.to_json() == plain.tree.to_json() and found.answer == plain.answer
    (warning,) = found.warnings
    assert "cgee rule 'paper' is not used" in warning and "'mcts'" in warning and "'agreement'" in warning
    assert found.skips.decisions == 0


def test_agreement_serves_mcts_and_scores_stay_scores(lab) -> None:
    def script(path, served):
        return f"Answer: 12{'.' * served}" if path else "abcd"[served % 4] + "\n\n"

    one = lab(ScriptedEngine(script, judge=lambda path, q: 0.25))
    found = one.solve("mcts", gate=Gate(Agreement()), options={"simulations": 12, "k": 3, "leaves": 1})
    scored = [node for node in found.tree.nodes() if node.score is not None]
    skipped = [node for node in found.tree.nodes() if node.standing is not None]
    assert found.answer == "12" and skipped and not found.warnings
    assert one.count("scores") == len(scored) and found.skips.saved_verifications == len(skipped)
    assert {node.standing for node in skipped if node.complete} == {1.0}
    assert {node.mean_value for node in found.tree.nodes() if node.visits} == {0.25}  # no standing was averaged in


def test_the_dissenting_branch_does_not_win_by_its_score_once_the_others_agree(lab) -> None:
    """Wave 1: one finished branch says 15, with a high score; the rest go on and all say 12."""

    def script(path, served):
        if not path:
            return "Answer: 15" if served == 0 else "abcdefgh"[served] + "\n\n"
        return f"Answer: 12{' ' * served}."

    engine = ScriptedEngine(script, judge=lambda path, q: 0.99 if "15" in path[-1] else 0.5)
    one = lab(engine)
    found = one.solve("tot", gate=Gate(Agreement()), options={"b": 8, "k": 8, "max_depth": 2})
    assert (found.answer, found.skips.by_rule) == ("12", {"agreement": 1})
    assert one.count("scores") == 8


@pytest.mark.parametrize("capacity", [1, 16])
def test_a_level_is_skipped_or_verified_as_a_whole(lab, capacity) -> None:
    """Of two nodes' children the first ones alone are a decisive wave; skipped, they would rank below the others."""

    def script(path, served):
        if not path:
            return branch("pq"[served] + "\n\n", 0.6, "step")
        if len(path) == 1:
            good = path[0][0] == "p"
            return branch(f"{'good' if good else 'bad'} {served}\n\n", (0.99, 0.5)[served] if good else 0.98, "step")
        return branch(f"Answer: {1 if path[1][0] == 'g' else 2}", 0.5)

    engine = ScriptedEngine(script, judge=lambda path, q: 0.9 if path[-1][0] == "g" else 0.1)
    options = {"b": 2, "k": 2, "max_depth": 3}
    found = lab(engine).solve("tot", gate=Gate(Paper()), options=options, capacity=capacity)
    assert [node.score is None for node in found.tree.level(2)] == [False] * 4
    assert found.answer == "1"


@pytest.mark.parametrize(
    ("budget", "applies"),
    [({}, True), ({"tokens": 8 * 96}, True), ({"nodes": 8}, True), ({"tokens": 700}, False), ({"nodes": 3}, False)],
)
def test_a_calibrated_rule_does_not_apply_to_a_wave_that_the_budget_has_cut(lab, budget, applies) -> None:
    always = {"tau_conf": 0.0, "gap": 0.0, "rel": 0.0}
    draw = Draw(branches=8, depth=0, temperature=0.8, top_p=0.95, max_tokens=96, whole=False)
    gate = Gate(Calibrated(record=record(thresholds=always, draw=draw)))
    one, options = lab(SimulatedEngine()), {"k": 8, "max_depth": 1}
    found = one.solve("tot", gate=gate, options=options, budget=Budget(**budget), merge=False)
    assert found.skips.by_rule == ({"calibrated": 1} if applies else {})
    assert any("its rule is for other waves" in warning for warning in found.warnings) is not applies


def test_a_strategy_that_judges_nothing_is_left_alone(lab) -> None:
    found = lab(SimulatedEngine()).solve("self_consistency", gate=Gate(Paper()))
    assert not found.warnings and found.skips.decisions == 0


def test_an_engine_without_confidences_is_refused_with_a_substitute(lab) -> None:
    one = lab(ScriptedEngine(["Answer: 1"], capabilities=frozenset({"score"})))
    with pytest.raises(ValueError, match=r"cgee rule 'paper' needs confidence.*use 'agreement' or 'off'"):
        one.solve("tot", gate=Gate(Paper()))
    assert one.solve("tot", gate=Gate(Agreement())).answer == "1"
    assert one.solve("greedy", gate=Gate(Paper())).answer == "1"


def test_skipped_nodes_are_told_to_the_index_by_their_standing(lab) -> None:
    """Under memory pressure a skipped winner must not go before judged losers; that costs time, never answers."""
    one = lab(three(0.6, 0.95, 0.5))
    told = []
    note = one.pool.note_scores

    async def spy(scores):
        told.extend(score for _, score, _ in scores)
        await note(scores)

    one.pool.note_scores = spy
    one.solve("tot", gate=Gate(Paper()), options=ONE_WAVE)
    assert told == pytest.approx([0.1 / 0.45, 1.0, 0.0])


def test_a_rule_of_ones_own_that_miscounts_fails_by_name(lab) -> None:
    class Miscounts(Off):
        name = "mine"

        def decide(self, wave):
            return Skip("mine", "because", (0.5,))

    with pytest.raises(ValueError, match="cgee rule 'mine' gave 1 standings for 3 branches"):
        lab(three(0.6, 0.95, 0.5)).solve("tot", gate=Gate(Miscounts()), options=ONE_WAVE)


def test_skipping_at_temperature_0_and_equal_samples(lab) -> None:
    """Equal samples are one branch, and one branch has nobody to be ahead of."""
    one = lab(ScriptedEngine(lambda path, served: branch("Answer: 4", 0.99)))
    found = one.solve("tot", gate=Gate(Paper()), options=ONE_WAVE, sampling=Sampling(temperature=0.0))
    assert (found.answer, one.count("scores"), found.skips.skipped) == ("4", 1, 0)


def test_every_strategy_says_where_scores_meet_and_whether_samples_are_counted() -> None:
    classes = {name: registry.strategy_class(name) for name in registry.names()}
    assert {name for name, cls in classes.items() if cls.compares == "wave"} == {"best_of_n", "dvts", "tot"}
    assert {name for name, cls in classes.items() if not cls.merges} == {"best_of_n", "self_consistency"}


@pytest.mark.parametrize("aggregate", ["last", "min", "prod", "mean", "sum_logprob"])
def test_aggregated_paths_are_ordered_by_standing_where_the_wave_was_skipped(lab, aggregate) -> None:
    """Wave 1 is verified, wave 2 skipped: r.0's score is the higher one, and must not decide among its children."""

    def script(path, served):
        if not path:
            return branch("ab"[served] + "\n\n", 0.5, "step")
        return branch(f"Answer: {served}", (0.6, 0.95)[served] if path[0][0] == "b" else (0.4, 0.5)[served])

    engine = ScriptedEngine(script, judge=lambda path, q: 0.9 if path[-1][0] == "a" else 0.2)
    found = lab(engine).solve(
        "tot", gate=Gate(Paper()), options={"b": 2, "k": 2, "max_depth": 2, "aggregate": aggregate}
    )
    assert found.skips.by_rule == {"paper": 1}
    assert (found.node_id, found.answer) == ("r.1.1", "1")


def test_a_verified_path_and_a_skipped_one_meet_in_votes_under_a_path_rank_too(bench) -> None:
    from search.types import Sample, Verdict

    b = bench("tot", k=4, aggregate="mean")
    skipped = [Verdict(None, "cgee:paper", standing=s, skipped="because") for s in (0.9, 0.3)]
    told = [
        Sample("Answer: 1", (1,), "eos", confidence=0.9, verdict=Verdict(0.99, "v")),
        Sample("Answer: 2", (2,), "eos", confidence=0.4, verdict=skipped[0]),
        Sample("So 2. Answer: 2", (3,), "eos", confidence=0.8, verdict=skipped[1]),
    ]
    b.tell(b.ask()[0], *told)
    selection = b.strategy.answer(b.tree)
    assert (selection.node_id, selection.answer) == ("r.1", "2")


@pytest.mark.parametrize("name", registry.names())
def test_the_estimate_holds_with_skipping_and_merging(lab, name) -> None:
    strategy = registry.create(name)
    one = lab(SimulatedEngine(depth=4))
    found = one.solve(strategy, gate=Gate(Agreement(agree_at=0.6)), merge=True)
    codec = one.engines[0].codec
    asked = [len(codec.encode(codec.next_turn(text))) + 1 for text in (STEP_QUESTION, ANSWER_QUESTION)]
    most = estimate(strategy, Sampling(), prompt_tokens=[10], question_tokens=max(asked))
    assert found.cost.generated <= most.generated and len(found.tree) - 1 <= most.nodes
    assert found.cost.verified <= most.verified
    scored = sum(node.score is not None for node in found.tree.nodes())
    assert scored + found.skips.saved_verifications <= most.verifications
