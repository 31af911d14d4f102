"""`status` of a cluster as text, and the requests to an autoscaler, without a cluster."""

import asyncio
import threading
from typing import Any

import pytest

pytest.importorskip("ray")

from ray.exceptions import RayError

from actors import remote
from actors.membership import Sight
from actors.names import engine_name, new_session, session_of
from orchestrator import UsageError, cluster
from orchestrator.cli import main
from orchestrator.cluster_status import lines_of
from orchestrator.config import Config

ENGINE = {
    "state": "up", "node": "10.0.0.2", "pid": 7, "incarnation": 99, "waiting": 3, "decode_rows": 4,
    "driver": "10.0.0.1:5", "kv_bytes": 3 << 20, "reused": 30, "prefilled": 10, "generated": 123,
}  # fmt: skip


def test_names_of_actors_say_whose_they_are():
    one, other = new_session(), new_session()
    assert one != other and session_of(one) == (one, "")
    assert session_of(engine_name(one, "engine-0")) == (one, "engine-0")


def test_an_idle_cluster_says_so():
    assert lines_of({}) == ["no orchestrator runs on this cluster"]


def test_each_index_stands_above_its_engines():
    found: dict[str, dict[str, Any]] = {
        "rksc-index-a": {"state": "up", "segments": 5, "entries": 6, "holders": 2, "leases": 1},
        "rksc-index-a.engine-0": ENGINE,
        "rksc-index-a.engine-1": {"state": "no answer in 5 s"},
        "rksc-index-b.engine-0": {**ENGINE, "driver": "10.0.0.9:5", "reused": 0, "prefilled": 0},
    }
    lines = lines_of(found)
    assert lines[0] == "rksc-index-a: 2 engines, driver 10.0.0.1:5"
    assert lines[1] == "  index: up; segments 5, entries 6, holders 2, leases 1"
    assert lines[3].split() == ["engine-0", "10.0.0.2", "7", "99", "up", "3", "4", "3.0", "MiB", "75%", "123"]
    assert lines[4].split() == ["engine-1", "-", "-", "-", "no", "answer", "in", "5", "s", "-", "-", "-", "-", "0"]
    assert lines[5:7] == ["rksc-index-b: 1 engines, driver 10.0.0.9:5", "  index: gone"]
    assert lines[8].split()[-2:] == ["-", "123"]


@pytest.mark.parametrize("extra", [["out", "--cluster"], ["--watch"], ["--name", "tot"]])
def test_what_goes_with_a_folder_is_refused_for_the_cluster(extra: list[str], capsys):
    with pytest.raises(SystemExit) as stop:
        main(["status", *extra])
    assert stop.value.code == 2 and "goes with the folder of a `run`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("told", "code", "said"),
    [
        ({"a": True, "b": True}, 0, "a: told\nb: told\n"),
        ({"a": True, "b": False}, 1, "a: told\nb: does not answer\n"),
        ({"a": False}, 3, "a: does not answer\n"),
        ({}, 0, "no orchestrator runs on this cluster\n"),
    ],
)
def test_drain_says_who_was_not_told(told, code, said, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(cluster, "tell_leaving", lambda node, seconds: told)
    with pytest.raises(SystemExit) as stop:
        main(["drain", "node"])
    assert (stop.value.code or 0) == code and capsys.readouterr().out == said


@pytest.mark.parametrize("seconds", ["inf", "nan", "-1"])
def test_a_time_that_is_none_is_refused_before_any_cluster(seconds: str, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["drain", "node", "--seconds", seconds])
    error = capsys.readouterr().err
    assert stop.value.code == 2 and f"must be a finite number, 0 or more; got {seconds}" in error


def test_indexes_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch):
    class Index:
        def __init__(self, name: str) -> None:
            self.leave = self
            self.name = name

        def remote(self, node: str, seconds: float) -> str:
            return self.name

    def get(name: str) -> None:
        if name.endswith("broken"):
            raise RayError("it died")

    def get_actor(name: str, namespace: str) -> Index:
        if name.endswith("gone"):
            raise ValueError(name)
        return Index(name)

    indexes = [f"rksc-index-{kind}" for kind in ("broken", "gone", "hung", "up")]
    named = [*indexes, "rksc-index-up.engine-0"]
    monkeypatch.setattr(remote, "_named_actors", lambda: dict.fromkeys(named, "default"))
    monkeypatch.setattr(remote.ray, "get_actor", get_actor)
    monkeypatch.setattr(remote.ray, "get", get)
    monkeypatch.setattr(remote.ray, "wait", lambda refs, **_: ([ref for ref in refs if "hung" not in ref], []))
    assert remote.tell_indexes("leave", "node", 60.0) == {name: name.endswith("up") for name in indexes}


class Looked:
    """A Ray that answers when it is asked whether it runs, or never."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
        self.asked, self.answer, self.events = threading.Event(), threading.Event(), []
        self.answers = answers
        monkeypatch.setattr(cluster.ray, "nodes", self.nodes)
        monkeypatch.setattr(cluster.ray, "is_initialized", self.is_initialized)
        monkeypatch.setattr(cluster.ray, "shutdown", lambda: self.events.append("ended"))
        self.cluster = cluster.RayCluster()
        self.cluster._ours = True

    def nodes(self) -> list[dict[str, Any]]:
        self.asked.set()
        self.answer.wait()
        self.events.append("looked")
        return []

    def is_initialized(self) -> bool:
        if self.answers:
            self.answer.set()
        return True

    def close_during_a_look(self) -> None:
        look = threading.Thread(target=self.cluster._look)
        look.start()
        self.asked.wait()
        self.cluster.close()
        self.answer.set()
        look.join()


def test_ray_ends_after_a_look_that_is_under_way_and_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch):
    ray = Looked(monkeypatch, answers=True)
    ray.close_during_a_look()
    assert asyncio.run(ray.cluster.look()) == Sight()
    assert ray.events == ["looked", "ended"]


def test_a_look_that_hangs_does_not_keep_ray_from_ending(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(cluster, "_LOOK_S", 0.0)
    ray = Looked(monkeypatch, answers=False)
    ray.close_during_a_look()
    assert ray.events == ["ended", "looked"]


class Autoscaler:
    """A cluster whose GPUs come once they are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, comes: int) -> None:
        self.asked: list[list[dict[str, float]]] = []
        self.comes = comes
        monkeypatch.setattr(cluster, "request_resources", self.request)
        monkeypatch.setattr(cluster, "_resources", self.resources)
        monkeypatch.setattr(cluster.time, "sleep", lambda s: None)

    def request(self, bundles: list[dict[str, float]]) -> None:
        self.asked.append(bundles)

    def resources(self) -> dict[str, float]:
        return {"CPU": 4.0, "GPU": 1.0 + (self.comes if self.asked else 0)}


def layout(**options: Any) -> cluster.Layout:
    return cluster.RayCluster()._layout(Config.create(model="simulated", gpus_per_engine=1, **options))


def test_an_autoscaler_is_asked_for_what_lacks_and_let_go(monkeypatch: pytest.MonkeyPatch):
    scaler = Autoscaler(monkeypatch, comes=3)
    assert layout(engines=4, wait_for_resources_s=60).engines == 4
    assert scaler.asked == [[{"GPU": 1.0}] * 4, []]
    assert layout(engines=2, wait_for_resources_s=60).engines == 2
    assert len(scaler.asked) == 2, "what is there is not asked for"


def test_what_never_comes_is_an_error_and_no_request_stays(monkeypatch: pytest.MonkeyPatch):
    scaler = Autoscaler(monkeypatch, comes=1)
    with pytest.raises(UsageError, match="need 4 GPU, the cluster has 2"):
        layout(engines=4, wait_for_resources_s=0.05)
    assert scaler.asked == [[{"GPU": 1.0}] * 4, []]
    with pytest.raises(UsageError, match="need 4 GPU"):
        layout(engines=4)
    assert len(scaler.asked) == 2, "without patience nothing is asked"


def test_an_address_where_nothing_listens_is_noticed_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(cluster.NoClusterError, match="no Ray cluster answers"):
        cluster.look()
