"""Readers that share a view, on a real broker; appliers and sinks are killed under load in tests/faults."""

from pathlib import Path

from bench.rescale import Plan, Rescale, declare
from tests.rig.broker import Broker


def test_readers_that_share_a_view_lose_nothing_and_show_nothing_twice(broker: Broker, tmp_path: Path) -> None:
    settings = declare(tmp_path, broker.kafka, f"{tmp_path.name}.")
    with Rescale(settings, Plan(records=4500, rate=1500, kills=True)) as run:
        found = run.run()
    assert (found.records, found.lost, found.shown_twice) == (4500, 0, 0)
    assert [(step.action, step.jobs) for step in found.steps] == [("start", 1), ("add", 2), ("kill", 1)]
    assert sum(step.records for step in found.steps) == 4500
    assert found.steps[1].partitions_moved > 0
