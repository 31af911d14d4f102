"""The benchmark of strategies at equal tokens: its problems, and what it does without its model."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("typer")

from bench import compare


def test_without_the_file_it_says_that_it_is_skipped(capsys, tmp_path):
    assert compare.main(["--gguf", str(tmp_path / "gone.gguf")]) == 0
    assert "skipped, no file" in capsys.readouterr().out


def test_another_file_is_refused(capsys, tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    assert compare.main(["--gguf", str(other)]) == 2
    assert compare.SHA256 in capsys.readouterr().err


def test_gsm8k_problems_have_their_results():
    problems = compare.gsm8k(20)
    assert len(problems) == 20 and problems[0].reference == "18" and problems[0].kind == "number"


def test_arithmetic_is_of_both_kinds_and_different():
    pytest.importorskip("reasoning_gym")
    problems = compare.Arithmetic().rows(20, 7)
    assert len({problem.text for problem in problems}) == 20
    assert sum(problem.id.startswith("chain_sum") for problem in problems) == 10
    assert all(problem.checker(problem.reference) for problem in problems)
