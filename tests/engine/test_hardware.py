"""What an engine says of what it computes on."""

import os

import pytest

torch = pytest.importorskip("torch")

from engine.hardware import _spans, hardware
from engine.local import LocalEngine


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
def test_engines_on_the_same_cores_share_them_and_on_others_do_not(monkeypatch, tmp_path):
    monkeypatch.setattr("engine.hardware._QUOTA", tmp_path / "none")

    def on(cores, threads=1):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
        return hardware(torch.device("cpu"), threads)

    assert on({0, 1, 2, 3}) == on({3, 2, 1, 0}) and on({0, 1, 2, 3})["slots"] == 4
    assert on({0, 1})["hardware"] != on({2, 3})["hardware"]
    assert on({0, 1, 2, 3}, threads=2)["slots"] == 2 and on({0}, threads=8)["slots"] == 1


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="no affinity on this system")
@pytest.mark.parametrize(("told", "slots"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 8), ("", 8)])
def test_a_container_has_the_cores_of_its_quota_for_itself(monkeypatch, tmp_path, told, slots):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr("engine.hardware._QUOTA", tmp_path / "cpu.max")
    free = hardware(torch.device("cpu"), 1)
    (tmp_path / "cpu.max").write_text(told)
    found = hardware(torch.device("cpu"), 1)
    assert free["slots"] == 8 and found["slots"] == slots
    assert (found["hardware"] == free["hardware"]) is (slots == 8)


def test_cores_are_named_by_spans():
    assert _spans([0, 1, 2, 3, 8, 10, 11]) == "0-3,8,10-11" and _spans([]) == "" and _spans([5]) == "5"


def test_an_engine_says_it(tiny_llama):
    told = LocalEngine.load(str(tiny_llama), dtype="float32", device="cpu").stats()
    assert {key: told[key] for key in ("hardware", "slots")} == hardware(torch.device("cpu"), torch.get_num_threads())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_is_named_by_its_own_id_and_bears_one():
    told = hardware(torch.device("cuda"), 1)
    assert told["slots"] == 1 and str(torch.cuda.get_device_properties(0).uuid) in told["hardware"]
