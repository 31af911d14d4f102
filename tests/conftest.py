"""Only tests under tests/cluster or marked `cluster` may start Ray."""

import importlib.util
import os
from collections.abc import Generator
from typing import NoReturn

import pytest
from hypothesis import settings

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
HAS_RAY = importlib.util.find_spec("ray") is not None


def refuse_ray_init(*args: object, **kwargs: object) -> NoReturn:
    raise RuntimeError("ray.init() in a unit test: move it to tests/cluster or mark it with `cluster`")


def may_start_ray(item: pytest.Item) -> bool:
    folders = item.path.relative_to(item.config.rootpath).parts[:-1]
    return folders[:2] == ("tests", "cluster") or item.get_closest_marker("cluster") is not None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Holds for fixtures of every scope, which an autouse fixture would not."""
    if not HAS_RAY or may_start_ray(item):
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray.init", refuse_ray_init)
        return (yield)
