import itertools
from dataclasses import replace

import pytest

from tests.unit.supervise.world import FOREVER, Nature, World
from tocsin.declare.model.job_report import FailureCause
from tocsin.supervise.job_states import (
    UNREADABLE,
    Actual,
    Change,
    Condition,
    Desired,
    History,
    Live,
    Past,
    Start,
    Stop,
    Timing,
)
from tocsin.supervise.restart_policy import plan_restart, reconcile, under_way

JOB = "detector:failed_logins"
OTHER = "ingest:logins"


def test_what_is_desired_is_started_once_and_then_left_in_peace() -> None:
    world = World({JOB: Desired("v1")})
    assert world.tick() == [Start(JOB, "v1", "should run")]
    world.run(300)
    assert len(world.log) == 1


def test_what_is_not_desired_is_asked_to_stop_once_and_then_forgotten() -> None:
    world = World({})
    stray = world.add(JOB, "v1")
    world.run(10)
    assert world.stops(JOB) == [Stop(JOB, stray.pid, "should not run")]
    assert not world.running(JOB)
    assert JOB not in world.history.jobs


def test_of_two_copies_the_older_stays() -> None:
    world = World({JOB: Desired("v1")})
    world.tick()
    (first,) = world.running(JOB)
    second = world.add(JOB, "v1")
    world.run(5)
    assert world.running(JOB) == [replace(first, beat_at=world.now, leads=True)]
    assert world.stops(JOB) == [Stop(JOB, second.pid, "runs twice")]


def test_a_changed_spec_replaces_that_job_alone_and_only_after_the_old_one_is_gone() -> None:
    world = World({JOB: Desired("v1"), OTHER: Desired("v1")}, {JOB: Nature(obeys_after=5)})
    world.run(10)
    world.desired = {JOB: Desired("v2"), OTHER: Desired("v1")}
    world.tick()
    assert [one.spec for one in world.running(JOB)] == ["v1"]
    world.run(10)
    assert [one.spec for one in world.running(JOB)] == ["v2"]
    assert world.changes(JOB) == []
    assert len(world.starts(OTHER)) == 1
    assert not world.stops(OTHER)


def test_one_that_was_asked_to_stop_is_not_counted_on_when_it_is_wanted_again() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(obeys_after=10)})
    world.run(5)
    world.desired = {JOB: Desired("v2")}
    world.tick()
    world.desired = {JOB: Desired("v1")}
    world.run(15)
    assert world.changes(JOB) == []
    assert len(world.starts(JOB)) == 2
    assert [one.spec for one in world.running(JOB)] == ["v1"]


def test_a_job_without_heartbeat_is_replaced_and_one_that_beats_is_not() -> None:
    world = World({JOB: Desired("v1"), OTHER: Desired("v1")}, timing=Timing(stale_after=60))
    world.run(10)
    (hung,) = world.running(JOB)
    world.natures[JOB] = Nature(beats=False)
    world.run(62)
    assert world.stops(JOB) == [Stop(JOB, hung.pid, "is hung: no heartbeat for 61 s")]
    assert world.changes(JOB) == ["restarting"], "to hang is to fail"
    world.run(3)
    assert [one.pid for one in world.running(JOB)] != [hung.pid]
    assert not world.stops(OTHER)


def test_a_job_that_beats_and_does_not_come_on_is_replaced_with_that_reason() -> None:
    world = World({JOB: Desired("v1"), OTHER: Desired("v1")}, timing=Timing(stalled_after=600))
    world.run(3)
    (stuck,) = world.running(JOB)
    world.live[stuck.pid] = replace(stuck, stalled_seconds=600)
    world.tick()
    assert not world.stops(JOB), "so long is allowed"
    world.live[stuck.pid] = replace(stuck, stalled_seconds=601)
    world.tick()
    reason = "is hung: it is alive, but made no progress for 601 s"
    assert world.stops(JOB) == [Stop(JOB, stuck.pid, reason)]
    world.run(3)
    assert world.log[-1][1] == Start(JOB, "v1", f"restart 1: {reason}")
    assert not world.stops(OTHER)


def test_to_come_to_a_standstill_again_and_again_is_a_crash_loop() -> None:
    world = World({JOB: Desired("v1")}, timing=Timing(stalled_after=600))
    for _ in range(4):
        world.run(20)
        (stuck,) = world.running(JOB)
        for seconds in range(50, 650, 50):
            world.run(50)
            world.live[stuck.pid] = replace(stuck, stalled_seconds=seconds + 1, stuck_at="detectors/x.py:12")
            world.tick()
    assert world.changes(JOB) == ["restarting", "crash loop"], "a standstill is no healthy time"
    assert "made no progress for 601 s; a worker is at detectors/x.py:12" in world.history.jobs[JOB].reason


def over_memory(world: World, megabytes: float) -> Live:
    """Let the one process of the job hold so much, and look at it."""
    (one,) = world.running(JOB)
    world.live[one.pid] = replace(one, rss_bytes=round(megabytes * 1e6))
    world.tick()
    return one


def test_a_job_over_its_declared_memory_is_restarted_with_that_reason() -> None:
    world = World({JOB: Desired("v1", memory_bytes=1_000_000_000), OTHER: Desired("v1")})
    world.run(300)
    over_memory(world, 1000)
    assert not world.stops(JOB), "the limit itself is allowed"
    one = over_memory(world, 1001)
    assert world.stops(JOB) == [Stop(JOB, one.pid, "memory limit: takes 1001 MB of 1000 MB")]
    assert world.changes(JOB) == ["restarting"]
    world.tick()
    assert [started.pid for started in world.running(JOB)] != [one.pid]
    assert world.log[-1][1] == Start(JOB, "v1", "restart 1: memory limit: takes 1001 MB of 1000 MB")
    world.run(200)
    assert world.changes(JOB) == ["restarting", "fine"]
    assert not world.stops(OTHER)


def test_one_that_stops_for_its_memory_is_counted_once_and_ended_when_it_does_not() -> None:
    world = World({JOB: Desired("v1", memory_bytes=500_000_000)}, {JOB: Nature(obeys_after=FOREVER)})
    world.tick()
    over_memory(world, 501)
    world.run(19)
    assert [stop.force for stop in world.stops(JOB)] == [False]
    assert len(world.history.jobs[JOB].failures) == 1
    world.run(3)
    assert world.stops(JOB)[-1].force


def test_the_first_heartbeat_has_a_longer_grace() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(beats=False)}, Timing(stale_after=60, start_grace=180))
    world.tick()
    (one,) = world.running(JOB)
    world.live[one.pid] = replace(one, beat_at=None)
    world.run(179)
    assert not world.stops(JOB)
    world.run(3)
    assert len(world.stops(JOB)) == 1


def test_what_gives_no_heartbeat_by_nature_is_not_hung() -> None:
    world = World({JOB: Desired("v1", beats=False)}, {JOB: Nature(beats=False)})
    world.run(600)
    assert not world.stops(JOB)


def test_the_first_failure_restarts_at_once_the_next_ones_later_and_later() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=1)}, Timing(first_delay=2, longest_delay=16))
    world.run(100)
    starts = world.starts(JOB)
    gaps = [round(after - before) for before, after in itertools.pairwise(starts)]
    assert gaps[:2] == [1, 3]
    assert gaps[2] == 5
    assert set(gaps[3:]) == {17}


def test_a_changed_spec_ends_a_crash_loop_at_once() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=1)})
    world.run(200)
    world.natures[JOB] = Nature()
    world.desired = {JOB: Desired("v2")}
    world.run(2)
    assert [one.spec for one in world.running(JOB)] == ["v2"]
    assert world.changes(JOB) == ["restarting", "crash loop", "fine"]
    assert world.history.jobs[JOB].failures == ()


def test_a_healthy_period_ends_the_condition_and_the_next_failure_is_no_reason_to_wait() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=1)})
    world.run(100)
    world.natures[JOB] = Nature()
    world.run(300)
    assert world.changes(JOB) == ["restarting", "crash loop", "fine"]
    world.ends[world.running(JOB)[0].pid] = (world.now, 1)
    before = world.now
    world.run(3)
    assert world.starts(JOB)[-1] == before + 1


def test_rare_failures_are_no_crash_loop_and_are_forgotten() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=700)})
    world.run(7000)
    assert "crash loop" not in world.changes(JOB)
    world.natures[JOB] = Nature()
    world.run(2600)
    assert world.history.jobs[JOB].failures == ()
    assert world.history.jobs[JOB].restarts == 10


@pytest.mark.parametrize("lives", [97, 120, 160, 400])
def test_four_failures_within_half_an_hour_are_a_crash_loop_however_long_each_attempt_takes(lives: float) -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=lives)})
    world.run(1790)
    assert "crash loop" in world.changes(JOB)


def test_a_process_that_finishes_no_batch_is_not_well_however_long_it_runs() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=1)})
    world.run(3)
    world.natures[JOB] = Nature()
    world.run(10)
    (stuck,) = world.running(JOB)
    world.live[stuck.pid] = replace(stuck, unproven=True)
    world.run(500)
    assert world.changes(JOB) == ["restarting"]
    world.live[stuck.pid] = replace(world.live[stuck.pid], unproven=False)
    world.run(1)
    assert world.changes(JOB) == ["restarting", "fine"]


@pytest.mark.parametrize(
    ("code", "condition", "why"), [(2, "misconfigured", "configuration is wrong"), (4, "no room", "disk is full")]
)
def test_wrong_configuration_and_a_full_disk_are_told_as_such_and_wait_the_longest_delay(
    code: int, condition: str, why: str
) -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=1, code=code)})
    world.run(58)
    assert len(world.starts(JOB)) == 1
    world.run(300)
    assert world.changes(JOB) == [condition]
    assert len(world.starts(JOB)) > 3
    assert why in world.history.jobs[JOB].reason


def test_a_held_lock_is_no_failure_and_is_tried_again_soon() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=1, code=3)}, Timing(locked_retry=5))
    world.run(61)
    assert world.changes(JOB) == ["locked"]
    assert world.history.jobs[JOB].failures == ()
    assert 9 <= len(world.starts(JOB)) <= 11
    world.natures[JOB] = Nature()
    world.run(30)
    assert world.changes(JOB) == ["locked", "fine"]


def test_unreadable_desired_state_leaves_everything_alone() -> None:
    world = World({JOB: Desired("v1"), OTHER: Desired("v1")})
    world.run(10)
    world.desired = None
    before = world.history
    world.add(JOB, "v9")
    assert world.tick() == []
    assert world.history == before


def test_one_unreadable_job_is_neither_started_nor_stopped() -> None:
    world = World({JOB: UNREADABLE, OTHER: Desired("v1")})
    world.run(5)
    assert not world.starts(JOB)
    world.add(JOB, "v1")
    world.run(300)
    assert len(world.running(JOB)) == 1
    assert not world.stops(JOB)
    assert len(world.running(OTHER)) == 1


def test_a_process_that_died_has_failed_though_its_jvm_lives_on() -> None:
    world = World({JOB: Desired("v1")})
    world.run(5)
    (one,) = world.running(JOB)
    world.live[one.pid] = replace(one, leader=False)
    reason = "ended without an exit code: killed by the kernel (out of memory) or by somebody"
    assert world.tick() == [
        Change(JOB, Condition.RESTARTING, reason),
        Stop(JOB, one.pid, "lost its leader", force=True),
    ]
    assert len(world.history.jobs[JOB].failures) == 1
    assert [type(action) for action in world.tick()] == [Start]


def test_heavy_jobs_start_one_after_another_and_light_ones_at_once() -> None:
    desired = {f"detector:{n}": Desired("v1", heavy=True) for n in range(3)} | {"notifier": Desired("v1")}
    world = World(desired, timing=Timing(stagger=5))
    world.run(30)
    assert [world.starts(f"detector:{n}")[0] for n in range(3)] == [1001, 1006, 1011]
    assert world.starts("notifier") == [1001]


def test_a_job_that_ends_with_code_0_was_not_asked_and_is_restarted() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=1, code=0)})
    world.run(30)
    assert len(world.starts(JOB)) > 2
    assert "exit code 0" in world.history.jobs[JOB].reason


def test_a_clock_set_back_does_not_delay_a_start_for_long() -> None:
    world = World({JOB: Desired("v1")}, {JOB: Nature(lives=1)})
    world.run(100)
    world.now -= 50_000
    world.live, world.ends = {}, {}
    world.natures[JOB] = Nature()
    world.run(2)
    assert len(world.running(JOB)) == 1


def test_the_first_cause_stays_however_many_others_follow_and_goes_when_the_job_is_well() -> None:
    past = Past(spec="v1", started_at=0.0, expected=True)
    first = FailureCause(what="ZeroDivisionError: division by zero", file="detectors/d.py", line=9, event="e/0/7")
    history, timing = History(jobs={JOB: past}), Timing()
    for number in range(76):
        cause = first if number == 0 else FailureCause(what="the sink is closed")
        now = 61.0 * (number + 1)
        actual = Actual(exits={JOB: 1}, causes={JOB: cause})
        _, history = reconcile({JOB: Desired("v1")}, actual, history, now, timing)
        _, history = reconcile({JOB: Desired("v1")}, Actual(), history, now + 60, timing)
        history = replace(history, jobs={JOB: replace(history.jobs[JOB], started_at=now, expected=True)})
    failing = history.jobs[JOB]
    assert failing.first == first
    assert failing.reason == (
        "30 failures within 30 min, the first: detectors/d.py:9: ZeroDivisionError: division by zero, on event e/0/7; "
        "the last: failed with exit code 1: the sink is closed"
    )
    live = Live(job=JOB, pid=1, spec="v1", started_at=9_000.0, beat_at=9_999.0)
    _, history = reconcile({JOB: Desired("v1")}, Actual(live=[live]), history, 9_999.0, timing)
    assert history.jobs[JOB].first is None


def test_restarts_by_a_cluster_are_failures_of_a_job_that_supervision_leaves_alone() -> None:
    desired, history = {JOB: Desired("v1")}, History()
    live = Live(job=JOB, pid=1, spec="v1", started_at=0.0, beat_at=0.0, restarts=0)
    done: list[object] = []
    for restarts, now in [(0, 0.0), (1, 10.0), (1, 20.0), (2, 40.0), (3, 80.0), (4, 160.0), (4, 250.0)]:
        waiting = replace(live, restarts=restarts, started_at=now)
        actions, history = reconcile(desired, Actual(live=[waiting], exits={JOB: 1}), history, now)
        done += actions
    crash_loop = "4 failures within 30 min, the first: failed with exit code 1"
    assert done == [
        Change(JOB, Condition.RESTARTING, "failed with exit code 1"),
        Change(JOB, Condition.CRASH_LOOP, crash_loop),
    ], "silent for long, it is neither stopped nor started"
    assert (history.jobs[JOB].restarts, history.jobs[JOB].expected) == (4, True)
    well = replace(live, restarts=0, started_at=300.0)  # in the pod that has taken its place
    (actions, history) = reconcile(desired, Actual(live=[well]), history, 500.0)
    assert actions == [Change(JOB, Condition.FINE, "recovered")]
    failing = Actual(live=[replace(well, restarts=1)], exits={JOB: 2})
    actions, history = reconcile(desired, failing, history, 510.0)
    assert actions == [Change(JOB, Condition.MISCONFIGURED, "its configuration is wrong")]


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


def test_one_that_does_not_obey_a_restart_is_ended() -> None:
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
