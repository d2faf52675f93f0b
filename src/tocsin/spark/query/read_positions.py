"""Find how far a query in real-time mode has read between two batch boundaries, by metrics of its Kafka clients.

Spark says what it has read when a batch has ended. In between only its consumers know, and they publish each change of
their position as a lead over the first record of the partition (`records-lead`). See ADR 0018.
"""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Mapping
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.platform.kafka.topic_set import Place, Position, TopicSet, place_of

SETTLE_SECONDS = 0.2
"""What was polled so long ago has gone through the query, on a machine that keeps up."""

UNSENT_SECONDS = 1.0
"""Under load there is always something that was not acknowledged yet; what was polled so long ago was."""

_GUARD_SECONDS = 0.5
_FIND_SECONDS = (
    2.0  # the JVM looks through all its beans; within a batch a consumer not yet known makes nothing complete
)
_CONSUMERS = 'kafka.consumer:type=consumer-fetch-manager-metrics,client-id="consumer-{group}*",partition=*,*'
_PRODUCERS = "kafka.producer:type=producer-metrics,*"

Leads = Mapping[tuple[str, Place], float]
"""Name of a consumer's metrics and place to the lead: its position less the first offset of the place."""


class Reading:
    """Decides how far a query has read. Pure; times are those of one clock, in seconds.

    A lead that has not changed since the batch began says nothing: the next batch reads again what the last one had
    polled and not processed. Nothing is said around the end of a batch for the same reason.
    """

    def __init__(self) -> None:
        self._committed: Position = {}
        self._first: Position = {}
        self._base: Leads = {}
        self._ends_at = 0.0
        self._settled: Position = {}
        self._polled: tuple[float, Position] | None = None

    def begin(self, committed: Position, first: Position, leads: Leads, ends_at: float) -> None:
        """Begin a batch at `committed`, with `leads` left by the one before, and the end at the time `ends_at`."""
        self._committed, self._first, self._base, self._ends_at = dict(committed), first, leads, ends_at
        self._settled, self._polled = dict(committed), None

    def forget(self) -> None:
        """Know nothing until the next batch begins."""
        self._ends_at = 0.0

    def look(self, leads: Leads, is_unsent: bool, now: float) -> Position:
        """Return the offset of each place before which all has been processed; empty when unknown.

        `is_unsent` says that the broker has not acknowledged all that the query has written.
        """
        if now >= self._ends_at - _GUARD_SECONDS:
            return {}
        if self._polled is not None:
            polled_at, offsets = self._polled
            if now - polled_at >= (UNSENT_SECONDS if is_unsent else SETTLE_SECONDS):
                self._settled, self._polled = offsets, None
        if self._polled is None:
            self._polled = now, self._positions(leads)
        return dict(self._settled)

    def _positions(self, leads: Leads) -> Position:
        positions = dict(self._committed)
        for (name, place), lead in leads.items():
            if place in self._first and self._base.get((name, place)) != lead:
                position = self._first[place] + int(lead)
                positions[place] = max(position, positions.get(place, 0))
        return positions


class Clients:
    """The Kafka clients in the JVM of this process. Spark's own, unless its executors run elsewhere: then none."""

    def __init__(self, topics: tuple[str, ...], group: str) -> None:
        """See those consumers of `topics` whose group's name begins with `group`: a batch has others."""
        self._tags = {f"topic={name.replace('.', '_')},": name for name in topics}
        self._consumers = _CONSUMERS.format(group=group)  # an engine has those of many jobs
        self._beans: _Beans | None = None
        self._names, self._found_at = list[str](), float("-inf")

    def leads(self, *, anew: bool = False) -> Leads:
        """Read the leads of the consumers of the topics, of all there are now if `anew`; without those yet to poll."""
        found: dict[tuple[str, Place], float] = {}
        if anew or time.monotonic() - self._found_at > _FIND_SECONDS:
            self._names, self._found_at = self._ask().find(self._consumers), time.monotonic()
        for name in self._names:
            partition = re.search(r"[:,]partition=(\d+)", name)
            # The client writes a dot in the name of a topic as another character.
            topic = next((topic for tag, topic in self._tags.items() if tag in f"{name},"), None)
            if partition is not None and topic is not None:
                lead = self._ask().read(name, "records-lead")
                if not math.isnan(lead):
                    found[name, place_of(topic, int(partition[1]))] = lead
        return found

    def is_unsent(self) -> bool:
        """Return whether a producer holds records that the broker has not acknowledged."""
        beans = self._ask()
        names = beans.find(_PRODUCERS)
        return any(
            beans.read(name, "buffer-available-bytes") < beans.read(name, "buffer-total-bytes") for name in names
        )

    def sent(self) -> float:
        """Count the records that the producers have sent; begins again with each producer."""
        totals = [self._ask().read(name, "record-send-total") for name in self._ask().find(_PRODUCERS)]
        return sum(total for total in totals if not math.isnan(total))

    def _ask(self) -> _Beans:
        self._beans = self._beans or _Beans()
        return self._beans


class _Beans:
    """The MBeans of the JVM, for one call of py4j each.

    Through the methods of the interface: those of the class behind it are closed to reflection by Java's modules.
    """

    def __init__(self) -> None:
        jvm: Any = SparkContext._jvm
        gateway: Any = SparkContext._gateway
        self._jvm, self._gateway = jvm, gateway
        self._server = jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
        forms = jvm.java.lang.Class.forName("javax.management.MBeanServer").getMethods()
        by_form = {method.toString().partition("MBeanServer.")[2]: method for method in forms}
        self._query = next(method for form, method in by_form.items() if form.startswith("queryNames("))
        self._attribute = next(method for form, method in by_form.items() if form.startswith("getAttribute("))
        self._calls: dict[tuple[str, str], Any] = {}

    def find(self, pattern: str) -> list[str]:
        # Sent as one text: a walk through them takes a call for each. A name has commas of its own, and no spaces.
        names = self._query.invoke(self._server, self._call(pattern, "")).toString()
        return [name.rstrip(",") for name in names.strip("[]").split()]

    def read(self, name: str, attribute: str) -> float:
        try:
            return float(self._attribute.invoke(self._server, self._call(name, attribute)))
        except Py4JError:  # the client was closed since
            return math.nan

    def _call(self, name: str, attribute: str) -> Any:
        """Make the arguments of a call, which stay in the JVM."""
        if (name, attribute) not in self._calls:
            if len(self._calls) > 100:  # clients come and go
                self._calls.clear()
            call = self._gateway.new_array(self._jvm.java.lang.Object, 2)
            call[0] = self._jvm.javax.management.ObjectName(name)
            call[1] = attribute or None
            self._calls[name, attribute] = call
        return self._calls[name, attribute]


class ReadPositions:
    """The progress of a job's query since its last boundary. For the job's main thread."""

    def __init__(self, topics: TopicSet, group: str) -> None:
        """Watch the query that reads `topics` with consumers whose group's name begins with `group`."""
        self._topics, self._clients, self._reading = topics, Clients(topics.names, group), Reading()
        self._is_real_time = False

    def begin(self, committed: Position, batch_seconds: float) -> None:
        """Begin a batch at `committed`; `batch_seconds` is 0 in micro-batch mode, for which nothing is known."""
        self._reading.forget()
        self._is_real_time = batch_seconds > 0
        if self._is_real_time:
            with contextlib.suppress(ConfigError, TransientError, Py4JError):
                first, _ = self._topics.bounds()
                ends_at = time.monotonic() + batch_seconds
                self._reading.begin(committed, first, self._clients.leads(anew=True), ends_at)

    def offsets(self) -> Position:
        """Return what `Reading.look` does; empty while nothing is known, as in micro-batch mode."""
        if not self._is_real_time:
            return {}
        try:
            return self._reading.look(self._clients.leads(), self._clients.is_unsent(), time.monotonic())
        except Py4JError:
            return {}

    def sent(self) -> float:
        """Return what `Clients.sent` does; 0 when it is not known."""
        try:
            return self._clients.sent()
        except Py4JError:
            return 0.0
