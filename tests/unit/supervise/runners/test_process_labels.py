from pathlib import Path

from tocsin.declare.settings import Settings
from tocsin.supervise.runners.runner import Labels, instance_of, of_command, of_environment

LABELS = Labels("local-1a2b", "detector:failed_logins", "abc123")


def test_labels_are_read_back_from_each_place_they_are_written_to() -> None:
    assert of_command(["python", "spark_jobs/detect.py", "failed_logins", *LABELS.arguments()]) == LABELS
    assert of_command(["java", "-Xmx1g", LABELS.java_property(), "kafka.Kafka", "server.properties"]) == LABELS
    assert of_environment({"PATH": "/bin", **LABELS.variable()}) == LABELS


def test_a_name_with_spaces_is_read_back_too() -> None:
    odd = Labels("local-1a2b", "detector:failed logins=50% é", "abc123")
    assert of_environment(odd.variable()) == of_command([odd.java_property()]) == odd
    assert of_command(odd.arguments()) == odd


def test_what_carries_no_or_few_labels_is_not_ours() -> None:
    assert of_command([]) is None
    assert of_command(["vim", "--label"]) is None
    assert of_command(["python", "--label", "job=x", "--label", "instance=y"]) is None
    assert of_environment({}) is None


def test_two_state_folders_are_two_installations(tmp_path: Path) -> None:
    one, other = Settings(state=tmp_path / "one"), Settings(state=tmp_path / "other")
    assert instance_of(one) != instance_of(other)
    assert instance_of(one) == instance_of(Settings(state=tmp_path / "x" / ".." / "one"))
