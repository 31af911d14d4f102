"""Times of day: `3:45 PM` is `15:45`."""

import re
from dataclasses import dataclass

_TIME = re.compile(r"(?P<hour>\d{1,2})(?::(?P<minute>[0-5]\d))?(?:\s*(?P<half>[ap])\.?m\.?)?", re.IGNORECASE)


@dataclass(frozen=True)
class Time:
    """Hour and minute; `marked` by am or pm; without a mark, `short` where the hour has one digit."""

    hour: int
    minute: int
    marked: bool
    short: bool = False

    def key(self) -> str:
        """`15:45`; `3:45` stays as it is, for it may also be a ratio or in the afternoon."""
        return f"{self.hour if self.short else format(self.hour, '02')}:{self.minute:02}"

    def matches(self, other: "Time") -> bool:
        """The same time; `3:45` agrees with `3:45 PM` and `3:45 AM`, and not with `15:45`."""
        if self.minute != other.minute or self.hour == other.hour:
            return self.minute == other.minute
        return self._leaves_open(other) or other._leaves_open(self)

    def _leaves_open(self, other: "Time") -> bool:
        """Whether this is an hour of twelve without a mark, and the other has one."""
        return not self.marked and other.marked and 1 <= self.hour <= 12 and self.hour % 12 == other.hour % 12


def read_time(text: str) -> Time | None:
    """The time of day that a plain answer states, with minutes, or with am or pm, or both."""
    found = _TIME.fullmatch(text)
    if found is None or not (found["minute"] or found["half"]):
        return None
    hour, minute = int(found["hour"]), int(found["minute"] or 0)
    if not found["half"]:
        return Time(hour, minute, False, hour >= 1 and len(found["hour"]) == 1) if hour < 24 else None
    if not 1 <= hour <= 12:
        return None
    return Time(hour % 12 + (12 if found["half"] in "pP" else 0), minute, True)
