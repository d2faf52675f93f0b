"""Versions that ran are kept, and what an earlier release has pinned does not start unasked."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.rig.samples.project import copy_project
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.platform.code_versions import (
    KEPT,
    FollowedCatalog,
    installed_catalog,
    keep_version,
    kept_detector,
    kept_file,
    kept_versions,
)

ROOT = Path(__file__).parents[3]
NAME = "failed_logins"
JOB = f"detector:{NAME}"


WORDS = "flow:words"


class Installation:
    """A project with one detector whose file is edited."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(project=folder / "project", state=folder / "state")
        copy_project(folder / "project")
        self.file = folder / "project" / "detectors" / f"{NAME}.py"
        self.text = self.file.read_text()

    def edit(self, email: int, **also: str) -> None:
        """Give the file another limit, and so another version."""
        text = self.text.replace("email=50", f"email={email}")
        for old, new in also.items():
            assert old in text
            text = text.replace(old, new)
        self.file.write_text(text)

    def run(self, fingerprint: str = "f1") -> str:
        """What a job does that starts; its version."""
        spec = read_catalog(self.settings.project).detector(NAME)
        keep_version(self.settings, JOB, spec.version, spec.path.read_bytes(), fingerprint)
        return spec.version


@pytest.fixture
def one(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def pin(one: Installation, version: str, job: str = JOB) -> Path:
    """Leave the file that `tocsin rollback` of an earlier release wrote; returns it."""
    over = hashlib.sha256(one.file.read_bytes()).hexdigest()
    path = one.settings.state / "supervision" / "pins.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({job: {"version": version, "over": over, "at": "2026-11-01T00:00:00Z"}}))
    return path


def test_a_detector_that_an_earlier_release_has_pinned_starts_only_when_a_person_has_decided(one: Installation) -> None:
    first = one.run()
    one.edit(60)
    one.run("f2")
    pins = pin(one, first)
    copy = kept_file(one.settings, JOB, first)
    catalog = installed_catalog(one.settings)
    assert catalog.detectors == {}
    (fault,) = catalog.broken[f"detectors/{NAME}"].faults
    assert str(fault) == (
        f"{one.file}: was rolled back to version {first} by an earlier release, and this one runs files as they are: "
        f"copy {copy} over it; or, to run what it says, delete {pins}"
    )
    shutil.copy(copy, one.file)
    assert installed_catalog(one.settings).detector(NAME).version == first


@pytest.mark.parametrize("end", ["pins removed", "another file", "file gone"])
def test_a_pin_of_an_earlier_release_ends(one: Installation, end: str) -> None:
    followed, pins = FollowedCatalog(one.settings), pin(one, one.run())
    assert followed.read().broken
    if end == "pins removed":
        pins.unlink()
    elif end == "another file":
        one.edit(70)
    else:
        one.file.unlink()
    assert not followed.read().broken
    assert (NAME in followed.read().detectors) == (end != "file gone")


def test_who_reads_the_findings_of_a_pinned_detector_is_broken_too_and_no_other(one: Installation) -> None:
    reader = one.text.replace('source="logins"', 'source="findings.failed_logins"')
    one.file.with_name("reader.py").write_text(reader)
    pin(one, one.run())
    broken = installed_catalog(one.settings).broken
    assert broken.keys() == {f"detectors/{NAME}", "detectors/reader"}


def test_pins_that_cannot_be_read_are_an_error_that_says_what_to_do(one: Installation) -> None:
    pin(one, one.run()).write_text("{")
    with pytest.raises(ConfigError, match=r"pins.json: is broken.* remove it: then each job runs"):
        installed_catalog(one.settings)


def test_only_the_last_few_are_kept_and_their_files_with_them(one: Installation) -> None:
    seen = []
    for email in range(51, 51 + KEPT + 2):
        one.edit(email)
        seen.append(one.run())
    assert [v.version for v in kept_versions(one.settings, JOB)] == seen[-KEPT:]
    files = one.settings.checkpoint(JOB).glob(f"versions/*/{NAME}.py")
    assert {file.parent.name for file in files} == set(seen[-KEPT:])


def test_what_a_killed_start_has_left_beside_a_kept_file_is_removed_with_it(one: Installation) -> None:
    first = one.run()
    draft = kept_file(one.settings, JOB, first).with_name(".failed_logins.py.0123abcd")
    draft.write_text("def detect(")
    for email in range(51, 51 + KEPT):
        one.edit(email)
        one.run()
    assert not draft.parent.exists()


def test_a_process_that_starts_again_keeps_the_file_that_it_runs(one: Installation) -> None:
    spec, text = read_catalog(one.settings.project).detector(NAME), one.file.read_bytes()
    keep_version(one.settings, JOB, spec.version, text, "f1")
    one.edit(60)
    keep_version(one.settings, JOB, spec.version, text, "f1")
    one.run()
    assert kept_detector(one.settings, NAME, spec.version).levels.email == 50


def test_a_followed_catalog_is_read_again_when_a_file_has_changed(one: Installation) -> None:
    followed = FollowedCatalog(one.settings)
    one.run()
    first = followed.read()
    assert first.detector(NAME).levels.email == 50
    assert followed.read() is first
    one.edit(60)
    one.run("f2")
    second = followed.read()
    assert second.detector(NAME).levels.email == 60
    assert followed.read() is second


def test_a_flow_that_an_earlier_release_has_pinned_takes_no_source_away(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "words", tmp_path / "project")
    settings = Settings(project=tmp_path / "project", state=tmp_path / "state")
    one = SimpleNamespace(settings=settings, file=settings.project / "flows" / "words.py")
    pin(cast(Installation, one), "0123abcd", WORDS)
    catalog = installed_catalog(settings)
    assert catalog.broken.keys() == {"flows/words"}
    assert "words" in catalog.sources
    assert "words" in read_catalog(settings.project).flows


def test_a_name_is_that_of_a_detector_or_a_flow(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "words", project)
    assert read_catalog(project).versioned_job("words") == WORDS
    (project / "detectors").mkdir()
    (project / "detectors" / "words.py").write_text("broken")
    catalog = read_catalog(project)
    with pytest.raises(ConfigError, match="say detector:words or flow:words"):
        catalog.versioned_job("words")
    assert catalog.versioned_job(WORDS) == WORDS
    with pytest.raises(ConfigError, match=r"no detector or flow 'word' .*did you mean 'words'"):
        catalog.versioned_job("word")


def test_a_table_is_a_file_that_a_followed_catalog_follows(one: Installation) -> None:
    followed = FollowedCatalog(one.settings)
    before = followed.read()
    (one.settings.project / "tables").mkdir()
    (one.settings.project / "tables" / "new.toml").write_text("broken")
    assert "tables/new" in followed.read().broken
    assert "tables/new" not in before.broken
