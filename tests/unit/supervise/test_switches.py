from pathlib import Path

from tocsin.supervise.job_states import UNREADABLE, Desired
from tocsin.supervise.switches import Switches, ask_switches, not_stopped, note_turn, read_switches, turned_since

A, B, INGEST = "detector:a", "detector:b", "ingest:logins"
DAG_A, DAG_B = "detector__a", "detector__b"
JOBS = {INGEST: Desired("v1"), A: Desired("v1"), B: Desired("v1")}


def refuse(name: str) -> bool:
    raise ConnectionError(name)


def test_what_is_off_does_not_run_and_the_rest_does(tmp_path: Path) -> None:
    switches = ask_switches(tmp_path, [DAG_A, DAG_B], {DAG_A: True, DAG_B: False}.get)
    assert switches.apply(JOBS) == {INGEST: Desired("v1"), B: Desired("v1")}


def test_what_was_off_stays_off_when_nobody_knows_it_any_more(tmp_path: Path) -> None:
    """As with a new metadata DB: the DAGs are not there yet, then they are made anew."""
    ask_switches(tmp_path, [DAG_A, DAG_B], {DAG_A: True, DAG_B: False}.get)
    again = ask_switches(tmp_path, [DAG_A, DAG_B], lambda _: None)
    assert list(again.apply(JOBS)) == [INGEST, B]
    assert read_switches(tmp_path) == again


def test_a_switch_that_nobody_has_seen_is_on(tmp_path: Path) -> None:
    assert ask_switches(tmp_path, [DAG_A], lambda _: None).apply(JOBS) == JOBS


def test_one_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    ask_switches(tmp_path, [DAG_A, DAG_B], {DAG_A: True, DAG_B: False}.get)
    switches = ask_switches(tmp_path, [DAG_A, DAG_B], refuse)
    assert switches.apply(JOBS) == {INGEST: Desired("v1"), A: UNREADABLE, B: UNREADABLE}
    assert ask_switches(tmp_path, [DAG_A, DAG_B], lambda _: None).off == {DAG_A: True, DAG_B: False}, (
        "nothing is forgotten"
    )


def test_a_broken_detector_that_is_switched_off_stops(tmp_path: Path) -> None:
    assert Switches(off={DAG_A: True}).apply({A: UNREADABLE}) == {}


def test_detectors_that_are_no_longer_declared_are_forgotten(tmp_path: Path) -> None:
    ask_switches(tmp_path, [DAG_A, DAG_B], lambda _: True)
    assert ask_switches(tmp_path, [DAG_B], lambda _: True).off == {DAG_B: True}


def test_with_a_broken_file_no_job_starts_or_stops_until_all_switches_are_known(tmp_path: Path) -> None:
    (tmp_path / "supervision").mkdir()
    (tmp_path / "supervision" / "desired.json").write_text("{")
    alone = {INGEST: Desired("v1"), A: UNREADABLE, B: UNREADABLE}
    assert read_switches(tmp_path).apply(JOBS) == not_stopped(tmp_path, JOBS) == alone
    partly = ask_switches(tmp_path, [DAG_A, DAG_B], {DAG_A: True}.get)
    assert partly.apply(JOBS) == {INGEST: Desired("v1"), B: UNREADABLE}
    assert read_switches(tmp_path).is_broken, "B may have been off"
    ask_switches(tmp_path, [DAG_A, DAG_B], {DAG_A: True, DAG_B: False}.get)
    assert list(not_stopped(tmp_path, JOBS)) == [INGEST, B]


def test_a_turn_counts_until_the_switches_are_read(tmp_path: Path) -> None:
    note_turn(tmp_path)
    assert not turned_since(tmp_path, read_switches(tmp_path)), "nobody has read any switch: there is nothing to differ"
    first = ask_switches(tmp_path, [DAG_A], lambda _: True)
    assert not turned_since(tmp_path, first)
    note_turn(tmp_path)
    assert turned_since(tmp_path, first)
    assert not turned_since(tmp_path, ask_switches(tmp_path, [DAG_A], lambda _: True))


def test_what_is_off_is_not_wanted(tmp_path: Path) -> None:
    assert not_stopped(tmp_path, JOBS) == JOBS
    ask_switches(tmp_path, [DAG_A, DAG_B], {DAG_A: True, DAG_B: False}.get)
    assert list(not_stopped(tmp_path, JOBS)) == [INGEST, B]


def test_a_switch_turns_all_jobs_of_its_dag() -> None:
    jobs = dict.fromkeys(("flow:a", "compute:a", "view:a", "detector:a"), Desired("v1"))
    assert list(Switches(off={"view__a": True}).apply(jobs)) == ["flow:a", "detector:a"]
    assert list(Switches(off={"flow__a": True}, unreadable=frozenset({"view__a"})).apply(jobs)) == [*jobs][1:]
