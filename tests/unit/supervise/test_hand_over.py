"""A new version starts beside the one that runs, and follows it when it is ready."""

import itertools
from dataclasses import replace

from tests.unit.supervise.world import FOREVER, Nature, World
from tocsin.supervise.job_states import Desired, Start, Timing

JOB = "detector:failed_logins"
V1, V2, V3 = (Desired(spec, hands_over=True) for spec in ("v1", "v2", "v3"))


def changed(nature: Nature | None = None, timing: Timing | None = None) -> World:
    """The version v1 has run for a while; v2 is wanted since a moment."""
    world = World({JOB: V1}, {JOB: Nature()}, timing or Timing())
    world.run(10)
    world.natures[JOB] = nature or Nature()
    world.desired = {JOB: V2}
    return world


def specs(world: World) -> list[str]:
    return [one.spec for one in world.running(JOB)]


def test_the_old_version_runs_until_the_new_one_is_ready() -> None:
    world = changed(Nature(ready_after=20))
    world.tick()
    assert world.log[-1][1] == Start(JOB, "v2", "takes over from the running version", beside=True)
    world.run(19)
    assert specs(world) == ["v1", "v2"]
    assert not world.stops(JOB)
    world.run(5)
    assert specs(world) == ["v2"]
    assert [stop.reason for stop in world.stops(JOB)] == ["handing over to another version"]
    world.run(300)
    assert world.changes(JOB) == []
    assert len(world.starts(JOB)) == 2


def test_before_its_first_heartbeat_the_new_one_counts_as_not_ready() -> None:
    world = changed(Nature(beats=False))
    world.run(30)
    assert specs(world) == ["v1", "v2"]


def test_a_new_version_that_fails_stops_nothing() -> None:
    world = changed()
    (old,) = world.running(JOB)
    world.natures[JOB] = Nature(lives=3.0, code=2, ready_after=FOREVER)
    world.run(300)
    assert world.running(JOB)[0].pid == old.pid
    assert not world.stops(JOB)
    assert world.changes(JOB) == ["misconfigured"], "told once, however long the old one runs"
    assert world.history.jobs[JOB].reason == "its configuration is wrong; the version before keeps running"
    starts = world.starts(JOB)[1:]
    assert all(later - earlier >= 60 for earlier, later in itertools.pairwise(starts))


def test_taking_the_change_back_ends_the_matter() -> None:
    world = changed(Nature(lives=3.0, code=2, ready_after=FOREVER))
    world.run(10)
    world.desired = {JOB: V1}
    world.run(10)
    assert specs(world) == ["v1"]
    assert world.changes(JOB) == ["misconfigured", "fine"]
    assert len([start for _, start in world.log if isinstance(start, Start) and start.spec == "v1"]) == 1


def test_a_version_that_was_never_in_charge_gives_way_to_the_next_change() -> None:
    world = changed(Nature(ready_after=30))
    world.run(10)
    world.desired = {JOB: V3}
    world.run(5)
    assert specs(world) == ["v1", "v3"]
    world.run(60)
    assert specs(world) == ["v3"]
    assert world.changes(JOB) == []


def test_if_the_old_version_dies_on_the_way_the_new_one_leads() -> None:
    world = changed(Nature(ready_after=30))
    world.run(10)
    (old, _) = world.running(JOB)
    world.ends[old.pid] = (world.now, -9)
    world.run(200)
    assert specs(world) == ["v2"]
    assert world.changes(JOB) == []
    assert len(world.starts(JOB)) == 2


def test_if_the_new_version_is_killed_on_the_way_it_is_started_again() -> None:
    world = changed(Nature(ready_after=30))
    world.run(10)
    new = world.running(JOB)[1]
    world.ends[new.pid] = (world.now, -9)
    world.run(5)
    assert specs(world) == ["v1", "v2"]
    assert world.changes(JOB) == ["restarting"]
    world.run(60)
    assert specs(world) == ["v2"]


def test_an_old_version_that_hangs_is_no_version_to_keep() -> None:
    world = changed(Nature(ready_after=FOREVER))
    world.run(2)
    old, new = world.running(JOB)
    world.live[old.pid] = replace(old, beat_at=world.now - 100)
    world.natures[JOB] = Nature(beats=False)
    world.run(5)
    assert [one.pid for one in world.running(JOB)] == [new.pid]


def test_only_so_many_jobs_hand_over_at_once() -> None:
    jobs = [f"detector:d{number}" for number in range(6)]
    world = World(dict.fromkeys(jobs, V1), {job: Nature(ready_after=10) for job in jobs}, Timing(hand_overs=2))
    world.run(10)
    world.desired = dict.fromkeys(jobs, V2)
    most = 0
    for _ in range(100):
        world.tick()
        most = max(most, sum(len(world.running(job)) > 1 for job in jobs))
    assert most == 2
    assert [[one.spec for one in world.running(job)] for job in jobs] == [["v2"]] * 6


def test_jobs_hand_over_while_those_that_host_them_wait_for_them() -> None:
    hosts = [f"engine:live-{number}" for number in range(3)]
    natures = dict.fromkeys(hosts, Nature(ready_after=FOREVER)) | {JOB: Nature(ready_after=10)}
    host = replace(V1, hosts_jobs=True)
    world = World(dict.fromkeys(hosts, host) | {JOB: V1}, natures, Timing(hand_overs=2))
    world.run(10)
    world.desired = dict.fromkeys(hosts, replace(host, spec="v2")) | {JOB: V2}
    world.run(60)
    assert [[one.spec for one in world.running(job)] for job in hosts] == [["v1", "v2"]] * 3
    assert specs(world) == ["v2"]
