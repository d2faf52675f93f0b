"""What can go wrong around Tocsin, what must hold then, and the test that shows it. See docs/understand/faults.md."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: F1, F2, ...: stays the same for good.
        what: goes wrong.
        must: hold all the same.
        tests: that show it, as pytest names them, without the parameters of a test.
    """

    name: str
    what: str
    must: str
    tests: tuple[str, ...]


_EXACT = "findings exact, each person told once"

FAULTS = (
    Fault(
        "F1",
        "Kafka: leaders change, brokers die, two of three are away",
        f"{_EXACT}; no job restarts",
        ("tests/faults/test_kafka_network.py::test_leaders_that_change_and_a_lost_majority_lose_nothing",),
    ),
    Fault(
        "F2",
        "Kafka: away at the start and in the middle",
        f"jobs say so and wait; {_EXACT}",
        ("tests/faults/test_kafka_away.py::test_jobs_wait_for_kafka_at_start_and_in_the_middle_and_lose_nothing",),
    ),
    Fault(
        "F3",
        "Network to Kafka: silent for a minute, then connections end",
        f"{_EXACT}; no job restarts",
        ("tests/faults/test_kafka_network.py::test_a_network_that_is_lost_is_waited_for",),
    ),
    Fault(
        "F4",
        "Kafka: stalls for up to 20 s, as on a slow disk",
        f"{_EXACT}; no job restarts",
        ("tests/faults/test_kafka_network.py::test_a_broker_that_stalls_as_on_a_slow_disk_delays_and_loses_nothing",),
    ),
    Fault(
        "F5",
        "Kafka: retention removes what a reader has not read",
        "the gap is told; only whole windows are published",
        (
            "tests/e2e/test_detect.py::test_a_drain_that_retention_overtakes_goes_on_behind_the_gap",
            "tests/e2e/test_detect_gaps.py::test_records_removed_while_it_was_away_are_a_gap_and_only_whole_windows_are_published",
            "tests/e2e/test_landing.py::test_what_retention_removed_is_a_hole_in_the_ledger",
            "tests/e2e/test_detect_gaps.py::test_a_final_score_of_a_window_that_lacks_events_of_its_ingest_is_not_published",
        ),
    ),
    Fault(
        "F6",
        "Kafka: a topic is made anew, partitions are added",
        "nothing is read on by mistake, new partitions are read",
        (
            "tests/e2e/test_landing.py::test_a_recreated_topic_is_read_from_its_start_however_long_it_is",
            "tests/e2e/test_detect_gaps.py::test_a_topic_that_was_recreated_beyond_its_former_length_is_read_from_its_start",
            "tests/e2e/test_ingest.py::test_a_raw_topic_that_was_recreated_beyond_its_former_length_is_read_from_its_start",
            "tests/e2e/test_topics.py::test_the_indexer_reads_all_of_a_findings_topic_that_was_recreated",
            "tests/e2e/test_ingest.py::test_added_partitions_are_read",
            "tests/e2e/test_detect.py::test_added_partitions_are_read_and_an_event_that_ends_the_query_is_set_aside",
        ),
    ),
    Fault(
        "F7",
        "kill -9 of ingest and detector: before a flush, before a commit, in a drain",
        _EXACT,
        ("tests/faults/test_kills.py::test_kills_lose_nothing_double_nothing_and_tell_nobody_twice",),
    ),
    Fault(
        "F8",
        "kill -9 of indexer and notifier in the middle of their work",
        "one page or mail for each alert",
        (
            "tests/e2e/test_alerts.py::test_a_burst_of_120_pages_once_and_one_of_60_mails_once_through_crashes_of_both_jobs",
        ),
    ),
    Fault(
        "F9",
        "A JVM hangs",
        "noticed by its heartbeat, and it can be stopped",
        ("tests/e2e/test_ingest.py::test_a_jvm_that_hangs_stops_the_heartbeat_until_it_goes_on_and_can_be_stopped",),
    ),
    Fault(
        "F10",
        "kill -9 of flows and views, Redis, PostgreSQL and Kafka below them",
        "sinks hold what a recount gives",
        (
            "tests/faults/test_view_kills.py::test_sinks_hold_what_a_recount_gives_whatever_is_killed",
            "tests/e2e/test_flows.py::test_a_view_and_a_detector_behind_two_flows_equal_a_recount_though_both_are_killed",
        ),
    ),
    Fault(
        "F11",
        "kill -9 of landing and sealing",
        "each event lands once; a day is published whole or not at all",
        (
            "tests/faults/test_history.py::test_landing_that_is_killed_anywhere_lands_each_event_once",
            "tests/faults/test_history.py::test_a_seal_that_is_killed_anywhere_publishes_nothing_or_all",
        ),
    ),
    Fault(
        "F12",
        "kill -9 of a backfill",
        "no day counts half",
        ("tests/faults/test_backfill.py::test_a_backfill_that_is_killed_anywhere_half_publishes_no_day",),
    ),
    Fault(
        "F13",
        "kill -9 of the log drain and of a replay",
        "nothing is lost, repeats are the same events",
        (
            "tests/e2e/test_log_drain.py::test_a_killed_drain_loses_nothing_and_doubles_nothing",
            "tests/e2e/test_replay.py::test_a_killed_replay_to_a_topic_loses_nothing_and_other_readers_keep_their_place",
        ),
    ),
    Fault(
        "F14",
        "kill -9 of the launcher, and of all of Airflow",
        "nothing is left behind; what runs is adopted",
        (
            "tests/e2e/test_stack.py::test_killing_the_launcher_leaves_nothing_not_even_a_jvm",
            "tests/browser/test_supervision.py::test_all_of_airflow_killed_comes_back_and_adopts_the_jobs",
        ),
    ),
    Fault(
        "F15",
        "The checkpoint's disk is full",
        f"told; goes on once there is room; {_EXACT}",
        ("tests/faults/test_checkpoint_disk.py::test_a_full_disk_is_told_and_the_job_goes_on_once_there_is_room",),
    ),
    Fault(
        "F16",
        "The alerts DB is locked or read-only",
        "waited for; each person told once",
        (
            "tests/faults/test_outbox.py::test_a_locked_alerts_db_is_waited_for",
            "tests/faults/test_outbox.py::test_a_read_only_alerts_db_is_waited_for",
        ),
    ),
    Fault(
        "F17",
        "The alerts DB fails over to its standby",
        f"{_EXACT}; no job restarts",
        ("tests/faults/test_failover.py::test_a_standby_takes_over_and_everybody_is_told_once",),
    ),
    Fault(
        "F18",
        "The mail server is away, and dies with the notifier",
        "mail waits, is told, and leaves once",
        (
            "tests/faults/test_outbox.py::test_without_a_mail_server_the_outbox_waits_and_then_each_mail_leaves_once",
            "tests/faults/test_outbox.py::test_a_mail_server_that_dies_with_the_notifier_loses_no_mail",
        ),
    ),
    Fault(
        "F19",
        "Hostile records",
        "no job ends, no record is lost, no innocent user is hidden",
        (
            "tests/faults/test_bad_input.py::test_hostile_records_end_no_job_lose_no_record_and_hide_no_innocent_user",
            "tests/faults/test_bad_input.py::test_what_cannot_be_used_waits_in_quarantine_and_what_can_is_found",
        ),
    ),
    Fault(
        "F20",
        "A record that ends Spark's query",
        "set aside and named; all others are found",
        (
            "tests/e2e/test_ingest.py::test_a_record_that_ends_the_query_is_set_aside",
            "tests/e2e/test_detect_gaps.py::test_an_event_that_exhausts_the_heap_is_set_aside_after_a_few_lives",
            "tests/e2e/test_detect.py::test_added_partitions_are_read_and_an_event_that_ends_the_query_is_set_aside",
        ),
    ),
    Fault(
        "F21",
        "A detector that loops, leaks memory or prints without end",
        "it harms itself alone",
        ("tests/e2e/test_isolation.py::test_a_detector_that_loops_leaks_or_floods_harms_itself_alone",),
    ),
    Fault(
        "F22",
        "A new version that cannot run, or is killed while it takes over",
        "the old one is left in peace, the state goes over exactly",
        (
            "tests/e2e/test_hand_over.py::test_the_same_state_goes_over_from_a_process_that_is_killed_exactly",
            "tests/e2e/test_hand_over.py::test_a_new_version_that_cannot_run_says_what_to_fix_and_leaves_the_old_one_in_peace",
        ),
    ),
    Fault(
        "F23",
        "A schema of the alerts DB from a newer Tocsin",
        "the job ends, says so, and touches nothing",
        ("tests/unit/alerts/store/test_database.py::test_a_schema_that_no_migration_knows_is_a_config_error",),
    ),
    Fault(
        "F24",
        "The clock of indexer and notifier jumps by an hour, ahead and back",
        "findings exact; everybody is told, a few by a mail before the page or in the summary",
        ("tests/faults/test_clock.py::test_a_clock_that_jumps_changes_no_finding_and_keeps_nobody_from_being_told",),
    ),
    Fault(
        "F25",
        "The state folder is lost, and restored from a backup",
        "no finding is lost or wrong",
        ("tests/faults/test_restore.py::test_a_lost_state_folder_is_restored_and_no_finding_is_lost_or_wrong",),
    ),
    Fault(
        "F26",
        "A disk takes 20 writes a second for a minute: that of Kafka, or of a checkpoint",
        f"{_EXACT}; no job restarts",
        (
            "tests/faults/test_slow_disk.py::test_a_slow_disk_under_kafka_delays_and_loses_nothing",
            "tests/faults/test_slow_disk.py::test_a_slow_disk_under_a_checkpoint_delays_and_loses_nothing",
        ),
    ),
)
