"""Case 69 on a real model: the driver is killed once in 8 problems of GSM8K, and the rows are those of a calm run."""

from pathlib import Path

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

from engine.models import ModelNotFoundError, resolve
from tests.orchestrator.batch.killing import ROOT, assert_same_rows, generated, killed_at, start

try:
    resolve("embedded")
except ModelNotFoundError as missing:
    pytest.skip(str(missing), allow_module_level=True)

DRIVER = Path(__file__).with_name("embedded_driver.py")
ROWS = ROOT / "tests" / "data" / "gsm8k_*.jsonl"


def test_case_69_killed_once_on_the_embedded_model(tmp_path: Path):
    out, log = tmp_path / "killed", tmp_path / "killed.log"
    assert start(ROWS, tmp_path / "calm", tmp_path / "calm.log", driver=DRIVER).wait(600) == 0
    killed_at(3, 0.3, ROWS, out, log, driver=DRIVER)
    assert start(ROWS, out, log, driver=DRIVER).wait(600) == 0
    assert_same_rows(tmp_path / "calm", out, 8)
    share = generated(log) / generated(tmp_path / "calm.log")
    print(f"tokens of both processes: at most {share:.4f} of one pass")
    assert 1.0 <= share <= 1.05
