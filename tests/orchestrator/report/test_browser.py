"""Case 71: reports in headless Chromium. Nothing fails in the page, nothing leaves it, and it can be used."""

import time
from pathlib import Path

import pytest

pytest.importorskip("pydantic")

from orchestrator.report.command import make_report
from tests.orchestrator.report.devtools import CHROMIUM, Page
from tests.orchestrator.report.hostile import HOSTILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt-get install chromium)"),
]


@pytest.fixture
def page(tmp_path: Path):
    with Page(tmp_path / "profile") as page:
        yield page
        assert page.errors == []
        assert {url.split(":")[0] for url in page.requests} <= {"file", "data"}
        assert len([url for url in page.requests if url.startswith("file")]) == 1


def visible(page: Page, selector: str) -> bool:
    return page.js(
        f"(() => {{ const e = document.querySelector('{selector}'); if (!e) return false;"
        "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
        "return r.height > 0 && e.contains(document.elementFromPoint(r.left + 50, r.top + r.height / 2)); })()"
    )


def test_a_report_of_50_problems(page: Page, simulated, tmp_path: Path):
    file = tmp_path / "report.html"
    make_report(simulated(50, ("mcts", "tot")), file)
    page.open(file)
    assert page.js("document.querySelectorAll('section.run svg').length") >= 12
    assert page.js("document.getElementById('shown').textContent") == "50 problems"
    assert visible(page, ".tree .item.win")
    assert page.js("document.querySelector('.rivals tbody tr').textContent") != ""
    page.click(".tree .item:nth-child(2)")
    assert page.js("document.querySelector('.node').dataset.node") == "r.0"
    text = page.js("document.querySelector('.node .text').textContent")
    assert text.startswith(("Step", "Answer")) and text[:9] in page.js(
        "document.querySelector('.tree .item:nth-child(2)').textContent"
    )
    assert page.js("document.querySelector('.tree .item.chosen bdi').textContent")[:9] == text[:9]
    before = page.js("document.querySelector('.tree').getAttribute('aria-activedescendant')")
    page.js("document.querySelector('.tree').focus()")
    page.key("ArrowDown")
    page.key("ArrowDown")
    assert page.js("document.querySelector('.tree').getAttribute('aria-activedescendant')") != before
    page.js("document.querySelector('.tree').focus()")
    page.key("Home")
    items = page.js("document.querySelectorAll('.tree .item').length")
    page.key("ArrowLeft")
    assert page.js("document.querySelectorAll('.tree .item').length") == 1 < items
    page.key("ArrowRight")
    assert page.js("document.querySelectorAll('.tree .item').length") == items
    page.js(
        "(() => { const f = document.getElementById('find'); f.value = 'p49'; f.dispatchEvent(new Event('input')); })()"
    )
    page.click("#rows .item")
    assert page.js("document.querySelector('#problem h2').textContent") == "p49"
    assert page.js("document.querySelector('#problem .question').textContent") == "What is 49 + 49?"
    back = "getComputedStyle(document.body).backgroundColor"
    light = page.js(back)
    page.js("scrollTo(0, 0)")
    page.click("#theme")
    assert page.js(back) != light
    assert len(page.screenshot(tmp_path / "shot.png")) > 20_000


def test_case_71_a_tree_of_5000_nodes_opens_and_pans(page: Page, by_hand, tmp_path: Path):
    file = tmp_path / "report.html"
    make_report(by_hand(5000), file)
    began = time.monotonic()
    page.open(file)
    assert visible(page, ".tree .item.win")
    assert time.monotonic() - began < 20
    assert page.js("document.querySelectorAll('.tree .item').length") < 100
    assert page.js("document.querySelector('.tree .fill').clientHeight") == 5001 * 24
    page.js("document.querySelector('.tree').focus()")
    page.key("End")
    assert page.js("[...document.querySelectorAll('.tree .item')].at(-1).id") == "node-5000"
    page.js("document.querySelector('.tree').scrollTop = 60000")
    page.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert int(page.js("document.querySelector('.tree .item').id.split('-')[1]")) > 2000
    row = page.js("document.querySelector('.tree .item:nth-child(9) bdi').textContent")
    page.click(".tree .item:nth-child(9)")
    name = page.js("document.querySelector('.node').dataset.node")
    assert page.js("document.querySelector('.node .text').textContent").startswith(f"step {name}")
    assert row.startswith(f"step {name}")
    page.click(".as-map")
    paint = (
        "(() => { const c = document.querySelector('.map'), d = c.toDataURL();"
        "return [c.width, d.length, d.slice(-4000)]; })()"
    )
    first = page.js(paint)
    assert first[0] > 300 and first[1] > 10_000
    page.drag(".map", 120, 60)
    assert page.js(paint)[2] != first[2]


def test_hostile_text_is_shown_and_does_nothing(page: Page, by_hand, tmp_path: Path):
    file = tmp_path / "report.html"
    make_report(by_hand(6, HOSTILE, HOSTILE, HOSTILE + "x" * 100_000), file)
    page.open(file)
    page.click(".tree .item:nth-child(3)")
    assert page.js("document.querySelector('.node').dataset.node").count(".") == 2
    shown = page.js("document.querySelector('.node .text').textContent")
    assert "</script><script>window.hacked=1</script>" in shown
    assert "\x1b" not in shown and "\u202e" not in shown and "U+202E" in shown
    assert page.js("window.hacked") is None
    assert page.js("document.querySelectorAll('img').length") == 0
    assert "more characters" in page.js("document.querySelector('.question').textContent")
