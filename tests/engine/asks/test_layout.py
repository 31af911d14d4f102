"""What `layout` wins is counted apart from `exact`: prefixes of prompts that came with other prompts."""

import pytest

torch = pytest.importorskip("torch")

from tests.engine.asks.conftest import BODY


def test_a_prefix_of_another_prompt_is_layout_and_the_own_prompt_is_exact(lab):
    engine = lab.engine()
    first = engine.expand([lab.ask(BODY + " Be short.")])[0].usage
    assert "layout" not in first.reused
    second = engine.expand([lab.ask(BODY + " Work backwards.")])[0].usage
    common = len(BODY) + 1
    length = len(BODY + " Work backwards.") - 1
    assert second.reused == {"layout": common, "exact": length}
    assert second.prefilled + sum(second.reused.values()) == 2 * length
    assert "layout" not in engine.expand([lab.ask(BODY + " Work backwards.")])[0].usage.reused


def test_deeper_branches_are_exact(lab):
    engine = lab.engine()
    grown = engine.expand([lab.ask(BODY)])[0].branches[0]
    path = (*lab.path(BODY), grown.token_ids)
    ask = lab.ask(BODY)
    usage = engine.expand([type(ask)("y", path, (0,), ask.rule)])[0].usage
    assert set(usage.reused) == {"exact"}


def test_requests_that_start_together_count_the_prefix_once(lab):
    engine = lab.engine()
    engine.expand([lab.ask(BODY + " Be short.")])
    asks = [lab.ask(BODY + " Work backwards.", n=1), lab.ask(BODY + " Work backwards.", n=1)]
    usages = [result.usage for result in engine.expand(asks)]
    assert [usage.reused.get("layout", 0) for usage in usages] == [len(BODY) + 1, 0]
