"""The benchmark of layer exit: its candidates, its comparison, and a run on the data of the tests."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from bench import layer_exit
from engine.local import LocalEngine
from tests.tiny import save_tiny_llama

DATA = Path(__file__).parents[1] / "data" / "gsm8k_3.jsonl"
ROWS = [
    {"question": "One?", "answer": "It is 1 + 1 = <<1+1=2>>2.\n#### 2"},
    {"question": "Two?", "answer": "Again.\n#### 2"},
    {"question": "Three?", "answer": "More.\n#### 3"},
]


def test_a_wrong_candidate_ends_in_another_rows_other_result():
    (first, right, wrong), _, (_, _, last) = layer_exit.candidates(ROWS)
    assert (first, right, wrong) == ("One?", "It is 1 + 1 = 2.\n\nAnswer: 2", "It is 1 + 1 = 2.\n\nAnswer: 3")
    assert last == "More.\n\nAnswer: 2"


def test_flips_and_changed_pairs_are_counted_against_the_full_pass():
    found = layer_exit.compared([0.9, 0.4, 0.3, 0.2], [0.6, 0.7, 0.3, 0.1])
    assert found == {"yes": 2, "flips": 1, "pairs": 2, "pairs_changed": 1, "right_above_wrong": 1}


def test_a_run_compares_every_rule_with_the_full_pass(tmp_path: Path):
    save_tiny_llama(tmp_path / "llama", num_hidden_layers=4, max_position_embeddings=4096)
    engine = LocalEngine.load(str(tmp_path / "llama"), dtype="float32", device="cpu")
    rows = [json.loads(line) for line in DATA.read_text().splitlines()][:2]
    found = layer_exit.run(engine, rows, [0.0, 1e9], [3])
    full, never = found[0], found[-2]
    names = ["full", "paper", "paper, theta 0.5", "margin 0", "margin 1e+09", "all at layer 3"]
    assert [row["rule"] for row in found] == names
    assert (found[-1]["exits"], found[-1]["layer_rows"]) == (4, 12)
    for same in (full, never):
        assert (same["exits"], same["flips"], same["layer_rows"], same["layer_rows_full"]) == (0, 0, 16, 16)
    assert found[1]["exits"] == 4
    assert found[1]["layer_rows"] == 8
    assert len(layer_exit.table(found).splitlines()) == 2 + len(found)
