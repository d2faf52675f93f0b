"""Find a part of the event time that stands outside of its column: a source reads a time from one field.

Parts are the zone, the year, AM or PM, and the time of day.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tocsin.declare.model.source import EPOCHS, SYSLOG
from tocsin.ingest.sampling.time_grammar import NAMED_IN, NUMBERED_ZONE, UTC_ZONE, ZONE

NAMED_TIME = re.compile(r"(?i:time|date|epoch)|(^|[_.])(?i:ts|at)$|(?<=[a-z])(Ts|At)$")
_NAMED_ZONE = re.compile(
    r"(?i)(?:^|_)(?:(?:tz|(?:time_?)?zone)(?:_?name)?|(?P<number>(?:utc|gmt|tz|time|zone)_?)?off(?:set)?)$"
)
_NAMED_YEAR, _NAMED_HOUR = re.compile(r"(?i)(?:^|_)year$"), re.compile(r"(?i)^(?:hour|hh|hr)$")
_AFTERNOON = re.compile(r"[T ](?:1[3-9]|2\d):")
_YEAR, _HALF = re.compile(r"(?:19|20)\d\d"), re.compile(r"(?i)[ap]\.?m\.?")
_MIDNIGHT, _ONLY_CLOCK = re.compile(r"[T ]00?:00(?::00)?(?:\.0+)?(?![\d:.])"), re.compile(r"\d?\d:\d\d\b.{0,12}")


def split_part(time: str, field: str, values: Mapping[str, list[Any]], *, form: str, has_zone: bool) -> str:
    """Say which part of the times in column `time`, of `field`, stands elsewhere; empty if none does."""
    if not has_zone and (zone := NAMED_IN.search(field)) and not UTC_ZONE.fullmatch(zone[1]):
        return f"has times without a zone in '{field}': write the source by hand, with the time_zone of {zone[1]}"
    lacks_year = form not in ("iso8601", *EPOCHS) and "y" not in form.removeprefix(SYSLOG)
    is_short = form not in EPOCHS and "a" not in form and not any(map(_AFTERNOON.search, map(str, values[time])))
    is_midnight = all(map(_MIDNIGHT.search, map(str, values[time])))
    for name in values:
        texts, named = list(dict.fromkeys(map(str, values[name]))), _NAMED_ZONE.search(name)
        holds = [all(map(of.fullmatch, texts)) for of in (NUMBERED_ZONE, ZONE, UTC_ZONE, _YEAR, _HALF, _ONLY_CLOCK)]
        is_zone = not has_zone and named and holds[not named["number"]] and not holds[2]
        is_year, is_half = lacks_year and _NAMED_YEAR.search(name) and holds[3], is_short and holds[4]
        is_clock = is_midnight and (_NAMED_HOUR.search(name) or (NAMED_TIME.search(name) and holds[5]))
        if texts and name != time and (is_zone or is_year or is_half or is_clock):
            what = f"has times in '{time}', and a part of them in '{name}' ({', '.join(texts[:2])}), which a source"
            what += " does not read: write both in one field"
            return what + (", or the source by hand, with time_zone if all agree" if is_zone else "")
    return ""
