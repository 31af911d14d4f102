"""When engines had work: overlapping calls count once, pauses count as idle."""

from orchestrator.batch.activity import Activity, Busy


def test_idle_share_and_stretches():
    now = [0.0]
    activity = Activity(lambda: now[0], gap_s=0.5)

    def at(t: float, engine: str, begins: bool) -> None:
        now[0] = t
        activity.on_call(engine, begins)

    assert activity.idle_share("abc") == {}
    at(10.0, "a", True)
    at(11.0, "a", True)
    at(12.0, "b", True)
    at(12.0, "a", False)
    at(13.0, "a", False)
    at(13.2, "a", True)
    at(14.0, "a", False)
    at(16.0, "a", True)
    now[0] = 20.0
    assert activity.idle_share("abc") == {"a": 0.22, "b": 0.2, "c": 1.0}
    assert activity.stretches() == []
    at(20.0, "a", False)
    assert activity.stretches() == [Busy("a", 10.0, 14.0)]
    assert activity.stretches(all_of_them=True) == [Busy("a", 16.0, 20.0)]
    assert activity.stretches(all_of_them=True) == []
