"""Restarts that an operator asks for, and looks that follow one another."""

from dataclasses import replace

from tests.unit.supervise.world import FOREVER, Nature, World
from tocsin.supervise.job_states import Actual, Condition, Desired, Stop
from tocsin.supervise.restart_policy import plan_restart, under_way

JOB, OTHER = "detector:failed_logins", "ingest:logins"
BOTH = {JOB: Desired("v1", heavy=True), OTHER: Desired("v1", heavy=True)}


def restart(world: World, job: str) -> list[Stop]:
    stops, world.history = plan_restart(job, Actual(live=list(world.live.values())), world.history, world.now)
    for stop in stops:
        world.do(stop)
    return stops


def test_a_restart_replaces_the_process_counts_no_failure_and_touches_no_other() -> None:
    world = World(BOTH)
    world.run(5)
    (old,), (other,) = world.running(JOB), world.running(OTHER)
    assert restart(world, JOB) == [Stop(JOB, old.pid, "a restart was asked for")]
    world.run(2)
    (new,) = world.running(JOB)
    assert new.pid != old.pid
    assert world.running(OTHER) == [replace(other, beat_at=world.now)]
    assert world.changes(JOB) == []
    assert world.history.jobs[JOB].failures == ()


def test_a_restart_ends_a_back_off_and_is_no_recovery() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=0.5)})
    world.run(30)
    assert world.changes(JOB) == ["restarting", "crash loop"]
    starts = len(world.starts(JOB))
    assert restart(world, JOB) == []
    world.tick()
    assert len(world.starts(JOB)) == starts + 1
    assert world.history.jobs[JOB].condition is Condition.CRASH_LOOP


def test_one_that_does_not_obey_is_ended() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(obeys_after=FOREVER)})
    world.run(5)
    (old,) = world.running(JOB)
    restart(world, JOB)
    assert restart(world, JOB) == [], "it was asked already"
    world.run(30)
    assert [stop.force for stop in world.stops(JOB)] == [True]
    assert [one.pid for one in world.running(JOB)] != [old.pid]
    assert world.changes(JOB) == []


def test_a_look_follows_while_one_stops_and_while_a_start_is_near() -> None:
    world = World(BOTH)
    world.tick()
    assert under_way(world.desired or {}, world.history, world.now + 1), "the second start is staggered"
    world.run(5)
    assert not under_way(BOTH, world.history, world.now + 1)
    restart(world, JOB)
    assert under_way(BOTH, world.history, world.now + 1)
    world.run(5)
    assert not under_way(BOTH, world.history, world.now + 1)


def test_a_look_follows_while_one_stops_that_is_not_to_run_any_more() -> None:
    world = World(BOTH, {JOB: Nature(obeys_after=5)})
    world.run(5)
    world.desired = {OTHER: BOTH[OTHER]}
    world.tick()
    assert under_way(world.desired, world.history, world.now)
    world.run(6)
    assert not under_way(world.desired, world.history, world.now)


def test_no_look_follows_for_a_start_that_is_far_or_for_what_cannot_be_read() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=0.5)})
    world.run(60)
    wait = world.history.jobs[JOB].retry_at - world.now
    assert wait > 5
    assert not under_way({JOB: Desired("v1")}, world.history, world.now + wait - 1)
    assert under_way({JOB: Desired("v1")}, world.history, world.now + wait)
    assert not under_way({JOB: Desired("", readable=False)}, world.history, world.now + wait)
