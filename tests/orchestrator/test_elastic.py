"""Room for engines on nodes, engines that were lost with theirs, and what the configuration refuses."""

import pytest

from orchestrator.config import Config, UsageError
from orchestrator.elastic import LOST_S, Whereabouts, room

GPU = {"CPU": 1.0, "GPU": 1.0}


@pytest.mark.parametrize(
    ("each", "nodes", "free", "engines", "most", "expected"),
    [
        ({"CPU": 1.0, "GPU": 0.0}, [{"CPU": 2}], {"CPU": 1.0}, 1, None, 1),
        (GPU, [{"CPU": 8, "GPU": 4}, {"CPU": 2, "GPU": 4}], {"CPU": 7.0, "GPU": 5.0}, 3, None, 3),
        (GPU, [{"CPU": 8, "GPU": 4}], {"CPU": 7.0, "GPU": 3.0}, 1, 3, 2),
        (GPU, [{"CPU": 8, "GPU": 4}], {"CPU": 7.0, "GPU": 3.0}, 4, 3, 0),
        (GPU, [{"CPU": 8}], {"CPU": 7.0}, 0, None, 0),
        ({"GPU": 0.1}, [{"GPU": 1.0}], {"GPU": 0.3}, 7, None, 3),
        ({"GPU": 0.75}, [{"GPU": 1.0}] * 2, {"GPU": 0.5}, 2, None, 0),
        ({"GPU": 1.0}, [{"GPU": 2.0}], {}, 0, None, 0),
        ({"CPU": 0.0, "GPU": 0.0}, [{"CPU": 2}], {"CPU": 2}, 1, 9, 0),
    ],
)
def test_room(each, nodes, free, engines, most, expected):
    assert room(each, nodes, free, engines, most) == expected


def test_an_engine_is_lost_once_its_node_was_gone_for_long_and_no_other_has_it():
    now = [0.0]
    where = Whereabouts(lambda: now[0])
    engines = ["a", "b", "c"]
    assert where.unsure(engines, {"n1"}) == engines
    where.note("a", "n1")
    where.note("b", "n2")
    assert where.unsure(engines, {"n1"}) == ["b", "c"]
    assert where.on("n2") == ["b"]
    assert where.lost(engines, {"n1"}) == []
    now[0] = LOST_S - 1
    assert where.lost(engines, {"n1"}) == []
    now[0] = LOST_S
    assert where.lost(engines, {"n1"}) == ["b"], "c is still starting"
    where.note("b", "n1")
    assert where.lost(engines, {"n1"}) == []
    assert where.lost(engines, set()) == [], "the time is that since its own node went"
    now[0] += LOST_S
    assert where.lost(engines, set()) == ["a", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"elastic": True, "runtime": "inline"}, "elastic=True goes with runtime='ray'"),
        ({"max_engines": 4}, "max_engines=4 goes with elastic=True"),
        ({"elastic": True, "engines": 5, "max_engines": 4}, "engines=5 is more than max_engines=4"),
    ],
)
def test_what_does_not_go_together_is_refused(options, message):
    with pytest.raises(UsageError, match=message):
        Config.create(**options)
