"""Which branch a decision selects, what counts as another one, and that searches select the same."""

import pytest

from engine.simulated import SimulatedEngine
from search.cgee.agreement import Agreement
from search.cgee.base import Contender
from search.cgee.decision import answer_groups, flipped, select
from search.cgee.gate import Gate
from search.cgee.paper import Paper
from search.cgee.skipping import contender_of
from search.types import Boundary, Problem, Sampling

SAID = Contender("r.0", 0.5, True, "Answer: 5")
ENDED = Contender("r.1", 0.5, True, "I give up.")
GOES_ON = Contender("r.2", 0.5, False, "Answer: 5")


@pytest.mark.parametrize(
    ("contenders", "values", "index"),
    [
        ((SAID, SAID, SAID), (0.1, 0.9, 0.3), 1),
        ((SAID, SAID), (0.5, 0.5), 0),
        ((SAID, SAID), (None, 0.0), 1),
        ((ENDED, GOES_ON, SAID), (0.9, 0.8, 0.1), 2),
        ((ENDED, GOES_ON), (0.9, 0.1), 1),
        ((GOES_ON, GOES_ON), (0.2, 0.3), 1),
        ((), (), None),
    ],
)
def test_selection(contenders, values, index) -> None:
    assert select(contenders, values) == index


def test_selection_needs_a_value_a_branch() -> None:
    with pytest.raises(ValueError, match="2 branches need as many values, got 1"):
        select((SAID, SAID), (0.5,))


def test_branches_with_equivalent_answers_are_one_branch() -> None:
    texts = ["Answer: 5", "Answer: 5.0", "Answer: 6", "nothing", "nothing else"]
    groups = answer_groups([Contender(f"r.{i}", None, True, text) for i, text in enumerate(texts)])
    assert groups == [0, 0, 1, None, None]
    assert not flipped(groups, 0, 0) and not flipped(groups, 0, 1)
    assert flipped(groups, 0, 2) and flipped(groups, 0, 3)
    assert flipped(groups, 3, 4) and not flipped(groups, 3, 3)
    assert flipped(groups, 0, None) and flipped(groups, None, 0) and not flipped(groups, None, None)


WHOLE = Sampling(boundary=Boundary.none(), max_tokens=256)


@pytest.mark.parametrize("rule", [None, Paper(tau_conf=0.0, gap=0.0, rel=0.0), Agreement(agree_at=0.51)])
def test_a_search_selects_what_the_decision_selects(lab, rule) -> None:
    """So that what a calibration counts is what a search does; verified and skipped alike."""
    skipped = 0
    for i in range(20):
        found = lab(SimulatedEngine(p_step=0.6, depth=3)).solve(
            "tot",
            Problem(f"What is {i} + {i}?"),
            gate=rule and Gate(rule),
            sampling=WHOLE,
            options={"k": 8, "b": 1, "max_depth": 1},
        )
        nodes = found.tree.children(found.tree.root)
        values = [node.score if node.standing is None else node.standing for node in nodes]
        assert found.node_id == nodes[select([contender_of(found.tree, node) for node in nodes], values)].id
        skipped += found.skips.skipped
    assert (skipped > 0) == (rule is not None)
