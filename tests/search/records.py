"""A sound calibration record for tests to change."""

from dataclasses import replace
from typing import Any

from search.calibration.record import CalibrationRecord, Setting
from search.cgee.base import Draw

DRAW = Draw(branches=8, depth=0, temperature=0.8, top_p=0.95, max_tokens=256, whole=True)


def record(**changes: Any) -> CalibrationRecord:
    base = CalibrationRecord(
        setting=Setting("m", "float32", "t", "general", "self_evaluation"),
        draw=DRAW,
        rule="paper",
        thresholds={"tau_conf": 0.8, "gap": 0.1, "rel": 0.2},
        loss="flip",
        alpha=0.01,
        delta=0.05,
        n=300,
        k=0,
        skips=50,
        flips=0,
        harms=None,
        date="2026-01-01",
        command="python -m orchestrator calibrate",
    )
    return replace(base, **changes)
