"""What the engine reports of a score comes back to the search, field by field."""

import pickle

from actors.convert import to_query, to_score
from engine.base import LayerExit, ScoreResult, Usage
from search.types import Cost, ExitRule, ScoreRequest


def test_a_score_request_survives_the_border_with_its_exit_rule():
    request = ScoreRequest("r", ((1, 2), (3,)), "right?", "engine-0", ExitRule("margin", 1.5))
    assert pickle.loads(pickle.dumps(request)) == request
    query = to_query(request)
    assert (query.id, query.path, query.question) == ("r", ((1, 2), (3,)), "right?")
    assert query.layer_exit == LayerExit("margin", 1.5)
    assert to_query(ScoreRequest("r", ((1,),), "?")).layer_exit is None


def test_layers_are_counted_and_add_up():
    usage = Usage(prefilled=4, scored=7, reused={"exact": 2}, held=2, exits=1, layer_rows=9, layer_rows_full=30)
    score = to_score(ScoreResult("r", 0.25, usage), "engine-0")
    assert (score.id, score.p_yes, score.engine) == ("r", 0.25, "engine-0")
    assert (score.cost.exits, score.cost.layer_rows, score.cost.layer_rows_full) == (1, 9, 30)
    total = score.cost + score.cost + Cost(layer_rows=30, layer_rows_full=30)
    assert (total.exits, total.layer_rows, total.layer_rows_full, total.verified) == (2, 48, 90, 14)
