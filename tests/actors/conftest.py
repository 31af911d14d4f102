"""The books of every dispatcher balance when its test is over."""

import pytest

from actors.dispatcher import Dispatcher


@pytest.fixture(autouse=True)
def balanced(monkeypatch):
    made = []
    begin = Dispatcher.__init__

    def remember(self, *args, **options):
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(Dispatcher, "__init__", remember)
    yield
    for pool in made:
        pool.check_integrity()
