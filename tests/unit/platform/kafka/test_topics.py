"""Wait until new topics can be read: every answer of a broker that does not lead yet is no error."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import TocsinError, TransientError
from tocsin.declare.model.sizes import VIEW_BYTES
from tocsin.declare.settings import Settings
from tocsin.platform.kafka.topics import TopicSpec, _await_visible, wanted_topics
from tocsin.setup.paths import here

SPEC = TopicSpec("raw.x", 1, {})


class Admin:
    """A broker that answers the question for the end of a partition with `codes`, one after the other, then well."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics={"raw.x": SimpleNamespace(partitions={0: None})})

    def list_offsets(self, places: Iterable[Any], request_timeout: float) -> dict[Any, Future[None]]:
        futures: dict[Any, Future[None]] = {place: Future() for place in places}
        for future in futures.values():
            if self.codes:
                future.set_exception(KafkaException(KafkaError(self.codes.pop(0))))
            else:
                future.set_result(None)
        return futures


@pytest.mark.parametrize("code", [3, 5, 6, 74, 75])  # Kafka's numbers: topic, leader, leader, epoch, epoch
def test_a_partition_without_a_leader_is_waited_for(code: int) -> None:
    admin = Admin(code, code)
    _await_visible(admin, [SPEC], 5.0)  # type: ignore[arg-type]
    assert admin.codes == []
    with pytest.raises(TransientError, match=r"raw\.x"):
        _await_visible(Admin(*[code] * 100), [SPEC], 0.1)  # type: ignore[arg-type]


def test_what_is_refused_is_not_waited_for() -> None:
    with pytest.raises(TocsinError, match="refuses"):
        _await_visible(Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED), [SPEC], 5.0)  # type: ignore[arg-type]


def test_the_topic_of_a_view_keeps_the_last_version_of_each_row_for_good() -> None:
    catalog = read_catalog(here().root / "examples" / "inventory")
    spec = wanted_topics(Settings(), catalog)["views.inventory"]
    assert (spec.partitions, spec.config["cleanup.policy"]) == (2, "compact")
    assert "retention.ms" not in spec.config
    assert spec.config["max.message.bytes"] == str(VIEW_BYTES)
