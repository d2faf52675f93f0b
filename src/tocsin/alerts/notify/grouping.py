"""Decide when notifications leave, and how many share a message. Pure; the caller passes the time.

E-mail alerts of all detectors to one person are a group. The first leaves at once, and the next message no sooner than
`alerts.group_interval` after the last, with all that has gathered: see `is_over`.

Any other group is what one detector has for one recipient: what is urgent, or everything to a program.

* The first after a quiet while leaves at once. What comes within `WAIT` of a message, or `alerts.group_interval` if
  that is shorter, gathers, and leaves as one.
* A storm begins when more than `MANY` alerts have gathered, or a message would be one too many (`RATE`). The message
  that begins it says so, and from then on all leaves as a digest, every `DIGEST_EVERY`.
* The first urgent alert of a storm whose messages were all e-mails leaves at once.
* A storm ends with the first digest of fewer than `MANY` alerts.

What continues an alert before, or was found too late, leaves in one summary a recipient: see `is_due`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

WAIT = timedelta(seconds=30)
MANY = 20
RATE, RATE_PERIOD = 6, timedelta(minutes=10)
"""Messages of a group, and the time in which there may be so many."""
DIGEST_EVERY = timedelta(minutes=15)
SUMMARY_EVERY, SUMMARY_GATHERS = timedelta(hours=1), timedelta(minutes=1)


@dataclass(frozen=True)
class GroupState:
    """The messages of a group so far.

    Attributes:
        last_sent_at: of the last message that was not an urgent one out of turn; None before the first.
        counted_from, messages: how many there were since then.
    """

    last_sent_at: datetime | None = None
    counted_from: datetime | None = None
    messages: int = 0
    storm_since: datetime | None = None
    storm_urgent: bool = False


@dataclass(frozen=True)
class Departure:
    """A message that leaves now: of all that has gathered, or of the urgent alerts alone; the state `after` it."""

    after: GroupState
    urgent_alone: bool = False


def decide(
    group: GroupState, gathered: int, urgent: int, now: datetime, interval: timedelta = WAIT
) -> Departure | None:
    """Choose the next message of a group with `gathered` alerts, `urgent` of them urgent; None while it waits.

    `interval` is `alerts.group_interval`.
    """
    if not gathered:
        return None
    if _is_recent(group.last_sent_at, DIGEST_EVERY if group.storm_since else min(WAIT, interval), now):
        if group.storm_since and urgent and not group.storm_urgent:
            return Departure(replace(group, storm_urgent=True), urgent_alone=True)
        return None
    counts_on = _is_recent(group.counted_from, RATE_PERIOD, now)
    messages = 1 + (group.messages if counts_on else 0)
    storms = gathered >= MANY if group.storm_since else gathered > MANY or messages > RATE
    after = GroupState(now, group.counted_from if counts_on else now, messages)
    if storms:
        after = replace(after, storm_since=group.storm_since or now, storm_urgent=group.storm_urgent or urgent > 0)
    return Departure(after)


def is_over(last_sent_at: datetime | None, interval: timedelta, now: datetime) -> bool:
    """Return whether `interval` has passed since a group's last message."""
    return not _is_recent(last_sent_at, interval, now)


def is_due(last_sent_at: datetime | None, oldest: datetime | None, until: datetime | None, now: datetime) -> bool:
    """Return whether a summary leaves now.

    `oldest` is when its first delayed line was written, and `until` how long those of continuing alerts wait; None if
    it has no such lines.
    """
    if until is not None and until <= now:
        return True
    return oldest is not None and is_over(last_sent_at, SUMMARY_EVERY, now) and is_over(oldest, SUMMARY_GATHERS, now)


def _is_recent(moment: datetime | None, period: timedelta, now: datetime) -> bool:
    """Return whether it is less than `period` ago. A moment ahead is none: the clock was set back since."""
    return moment is not None and timedelta(0) <= now - moment < period
