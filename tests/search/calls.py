"""Work as a count of calls, which is the same on every machine."""

import sys


class Calls:
    """How many functions a block calls, built-in ones included."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> None:
        sys.setprofile(self._seen)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _seen(self, frame: object, event: str, argument: object) -> None:
        self.count += event in ("call", "c_call")
