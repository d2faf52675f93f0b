import json
import re
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import Result

from tests.rig.command_line import invoke
from tests.rig.samples.history import DAY, day_rows, imported, judged, version
from tests.rig.samples.project import copy_project
from tests.rig.samples.sealed_days import landed, sealed
from tocsin.cli.app import tell
from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.declare.settings import Settings
from tocsin.history.landing_ledger import record
from tocsin.history.places import Places
from tocsin.history.sealing import SealingOutcome
from tocsin.history.spark.import_files import Imported
from tocsin.history.spark.seal import SealedDay


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    copy_project(tmp_path, "sources")
    monkeypatch.setenv("TOCSIN_PROJECT", str(tmp_path))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    return Settings(state=tmp_path / "state", project=tmp_path)


def run(*words: str) -> Result:
    return invoke(["history", *words])


def test_an_empty_history_says_how_to_begin(settings: Settings) -> None:
    done = run("list")
    assert (done.exit_code, "run: tocsin history seal --source NAME" in done.output) == (0, True)
    assert run("list", "--source", "logins", "--day", "2026-11-19").output.startswith(
        "2026-11-19 has no sealed version; 0 runs"
    )


def test_days_and_versions_are_listed_shown_taken_back_and_verified(settings: Settings) -> None:
    landed(settings, "r1", 5)
    sealed(settings, "v1", 5)
    landed(settings, "r2", 3, at=5)
    sealed(settings, "v2", 7)
    sealed(settings, "v3", 7, severity="critical")
    listed = json.loads(run("list", "--source", "logins", "--json").output)
    day = next(one for one in listed if one["day"] == "2026-11-19")
    assert (day["version"], day["rows"], day["landed"], day["versions"]) == ("v2", 7, 8, 3)
    assert (day["severity"], day["report"]) == ("critical", "quality/logins/report.html")
    assert "2026-11-19" in run("list").output

    shown = run("list", "--source", "logins", "--day", "2026-11-19").output
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("v")] == ["v3", "v2", "v1"]
    assert "v2  published, counts" in shown
    assert "7 events of 8 landed, 1 of them twice" in shown
    assert [
        one["version"] for one in json.loads(run("list", "--source", "logins", "--day", "2026-11-19", "--json").output)
    ] == [*("v3", "v2", "v1")]

    assert run("verify").output == "0 faults in the history of 1 source\n"
    back = ("publish", "logins", "--day", "2026-11-19", "--version", "previous")
    assert run(*back, "--by", "ann", "--reason", "late").exit_code == run(*back[:4], "--by", "ann").exit_code == 2
    assert run(*back).output.startswith("v1 counts for 2026-11-19: 5 events\n")
    shutil.rmtree(settings.history_folder / "days" / "logins" / "dt=2026-11-19" / "v1")
    done = run("verify", "--source", "logins")
    assert (done.exit_code, "v1/part-00000_00000.c000.zstd.parquet is gone" in done.output) == (1, True)


def test_a_folder_stands_for_its_files_in_the_order_of_their_names(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def import_files(_: object, __: object, paths: list[Path], *___: object) -> Iterator[Imported]:
        asked.append([path.name for path in paths])
        for _path in paths:
            yield Imported(imported("import-1", DAY), None, {}, known=True)

    monkeypatch.setattr("tocsin.history.spark.import_files.import_files", import_files)
    for name in ("past/b.csv", "past/a.jsonl", "past/.hidden", "past/deeper/c.jsonl", "z.jsonl"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    done = run("import", "--source", "logins", str(tmp_path / "z.jsonl"), str(tmp_path / "past"))
    assert (done.exit_code, asked) == (0, [["z.jsonl", "a.jsonl", "b.csv"]]), done.output
    assert done.output.count("was imported before, as run import-1") == 3
    (tmp_path / "empty").mkdir()
    done = run("import", "--source", "logins", str(tmp_path / "empty"))
    assert str(done.exception) == f"{tmp_path / 'empty'}: holds no file"


def test_a_source_with_records_of_its_own_is_imported_from_files(settings: Settings) -> None:
    done = run("import", "--source", "logins")
    assert done.exit_code == 2
    assert "name the files to import" in done.output


def test_an_import_is_withdrawn_with_its_findings(settings: Settings) -> None:
    record(Places.of(settings, "logins"), imported("import-1", DAY))
    done = run("withdraw", "logins", "--day", str(DAY))
    assert done.exit_code == 0, done.output
    assert "1 event of a.jsonl withdrawn from 2026-11-19" in done.stdout
    assert "nothing is left; no longer published, and without findings" in done.stdout
    assert "withdrawn" in run("list").stdout
    assert run("withdraw", "logins").exit_code == 2
    assert "is in no import" in str(run("withdraw", "logins", "--file", "a.jsonl").exception)


def test_a_file_that_cannot_be_read_is_told_and_the_others_come_in(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def import_files(*_: object) -> Iterator[Imported | ConfigError]:
        yield ConfigError.one("a.jsonl", "cannot be read: no such file")
        yield Imported(imported("import-1", DAY), None, {})

    monkeypatch.setattr("tocsin.history.spark.import_files.import_files", import_files)
    done = run("import", "--source", "logins", "a.jsonl", "b.jsonl")
    assert done.exit_code == 1
    assert "a.jsonl: cannot be read: no such file" in done.output
    assert "b.jsonl: 1 event of 2026-11-19" in done.output


def test_missing_days_share_a_line(settings: Settings) -> None:
    declared = settings.project / "sources" / "logins.toml"
    declared.write_text(f"history_days = 3650\n{declared.read_text()}")
    landed(settings, "r1", 5)
    old = [DAY - timedelta(days=back) for back in (1200, 3)]
    record(Places.of(settings, "logins"), imported("import-1", *old))
    lines = run("list").output.splitlines()
    missing = [" ".join(one.split()) for one in lines if "missing" in one]
    assert [one.split(" missing")[0] for one in missing] == [
        f"logins {old[1] + timedelta(days=1)} to {DAY - timedelta(days=1)}",
        f"logins {old[0] + timedelta(days=1)} to {old[1] - timedelta(days=1)}",
    ]
    assert "1,196 days: nothing has landed" in missing[1]
    assert len(json.loads(run("list", "--json").output)) == 1201


def test_a_mistake_in_the_call_is_told(settings: Settings) -> None:
    done = run("list", "--source", "login", "--day", "2026-11-19")
    assert done.exception is not None
    assert isinstance(done.exception, Exception)
    assert tell(done.exception) == 2
    assert "did you mean 'logins'" in str(done.exception)
    assert run("list", "--source", "logins", "--day", "yesterday").exit_code == 2
    assert "needs --source" in run("list", "--day", "2026-11-19").output


def test_a_folder_that_cannot_be_written_is_told_as_such(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def seal(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tocsin.history.sealing.seal", seal)
    done = run("seal", "--source", "logins")
    assert isinstance(done.exception, TransientError)
    assert "history cannot be used: No space left on device" in str(done.exception)


def test_a_day_that_could_not_be_sealed_is_listed_with_the_reason(settings: Settings) -> None:
    declared = settings.project / "sources" / "logins.toml"
    declared.write_text(f"history_days = 3650\n{declared.read_text()}")
    landed(settings, "r1", 5)
    day_rows(settings).note(DAY, "a landed file is broken")
    day = next(one for one in json.loads(run("list", "--json").output) if one["day"] == str(DAY))
    assert (day["state"], day["version"]) == ("failed", None)
    assert re.fullmatch(r"could not be sealed at .{16} UTC: a landed file is broken", day["note"])
    assert "failed" in run("list").output


def test_what_has_landed_before_is_sealed_without_kafka_and_what_was_not_looked_at_is_told(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = "localhost:1 does not answer"
    outcome = SealingOutcome(unread=away)
    monkeypatch.setattr("tocsin.history.sealing.seal", lambda *_, **__: outcome)
    done = run("seal", "--source", "logins")
    assert (done.exit_code, away in done.output, "nothing to seal" in done.output) == (1, True, True)
    outcome.sealed.append(SealedDay(DAY, version("v1"), judged()))
    done = run("seal", "--source", "logins")
    assert (done.exit_code, away in done.output, f"{DAY} v1: published" in done.output) == (0, True, True)
