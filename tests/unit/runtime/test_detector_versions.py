"""Versions that ran are kept, and an earlier one can be put in force."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rig.samples.project import copy_project
from tocsin.model.errors import ConfigError
from tocsin.project.settings import Settings
from tocsin.runtime import detector_versions
from tocsin.runtime.detector_versions import (
    KEPT,
    FollowedCatalog,
    catalog_in_force,
    keep_version,
    kept_versions,
    read_pins,
    roll_back,
    roll_forward,
    version_in_force,
)

NAME = "failed_logins"


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
        """What a job does that starts; the version that is in force."""
        spec = catalog_in_force(self.settings).detector(NAME)
        keep_version(self.settings, spec, spec.path.read_bytes(), fingerprint)
        return spec.version


@pytest.fixture
def one(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def test_the_version_before_is_in_force_until_the_file_changes(one: Installation) -> None:
    first = one.run()
    one.edit(60)
    second = one.run("f2")
    assert roll_back(one.settings, NAME).version == first
    assert one.run() == first
    assert catalog_in_force(one.settings).detector(NAME).levels.email == 50
    assert [v.version for v in kept_versions(one.settings, NAME)] == [first, second], (
        "in the order of their first start"
    )
    one.edit(70)
    assert version_in_force(one.settings, NAME) not in (first, second)
    assert read_pins(one.settings) == {}


def test_back_twice_is_two_versions_back_and_forward_is_the_file(one: Installation) -> None:
    first = one.run()
    one.edit(60)
    second = one.run()
    one.edit(70)
    third = one.run()
    assert roll_back(one.settings, NAME).version == second
    assert roll_back(one.settings, NAME).version == first
    with pytest.raises(ConfigError, match="no version that ran before"):
        roll_back(one.settings, NAME)
    assert roll_forward(one.settings, NAME)
    assert version_in_force(one.settings, NAME) == third
    assert not roll_forward(one.settings, NAME)


def test_a_version_that_never_ran_is_gone_back_from_too(one: Installation) -> None:
    first = one.run()
    one.edit(60)
    assert roll_back(one.settings, NAME).version == first


def test_a_file_that_cannot_be_read_is_no_hindrance(one: Installation) -> None:
    first = one.run()
    one.file.write_text("this is no Python")
    assert version_in_force(one.settings, NAME) == ""
    assert roll_back(one.settings, NAME).version == first
    catalog = catalog_in_force(one.settings)
    assert catalog.detector(NAME).version == first
    assert not catalog.broken


def test_what_does_not_touch_the_findings_is_that_of_the_file(one: Installation) -> None:
    one.run()
    one.edit(60, **{'stage="live"': 'stage="shadow"'})
    one.run()
    roll_back(one.settings, NAME)
    spec = catalog_in_force(one.settings).detector(NAME)
    assert spec.levels.email == 50
    assert spec.stage == "shadow"


def test_a_file_that_is_gone_is_no_detector(one: Installation) -> None:
    one.run()
    one.edit(60)
    one.run()
    roll_back(one.settings, NAME)
    one.file.unlink()
    assert NAME not in catalog_in_force(one.settings).detectors
    with pytest.raises(ConfigError, match="no detector"):
        roll_back(one.settings, NAME)


def test_a_version_by_its_name(one: Installation) -> None:
    first = one.run()
    for email in (60, 70, 80):
        one.edit(email)
        one.run()
    assert roll_back(one.settings, NAME, first).version == first
    with pytest.raises(ConfigError, match=f"no version '{first[:-1]}x' is kept .*did you mean '{first}'"):
        roll_back(one.settings, NAME, f"{first[:-1]}x")
    assert version_in_force(one.settings, NAME) == first, "a mistake changes nothing"


def test_only_the_last_few_are_kept_and_their_files_with_them(one: Installation) -> None:
    seen = []
    for email in range(51, 51 + KEPT + 2):
        one.edit(email)
        seen.append(one.run())
    assert [v.version for v in kept_versions(one.settings, NAME)] == seen[-KEPT:]
    files = one.settings.checkpoint(f"detector:{NAME}").glob(f"versions/*/{NAME}.py")
    assert {file.parent.name for file in files} == set(seen[-KEPT:])


def test_a_process_that_starts_again_keeps_the_file_that_it_runs(one: Installation) -> None:
    spec, text = catalog_in_force(one.settings).detector(NAME), one.file.read_bytes()
    keep_version(one.settings, spec, text, "f1")
    one.edit(60)
    keep_version(one.settings, spec, text, "f1")
    one.run()
    roll_back(one.settings, NAME)
    assert catalog_in_force(one.settings).detector(NAME).levels.email == 50


def test_broken_files_of_ours_mean_that_nothing_is_pinned(one: Installation) -> None:
    one.run()
    one.edit(60)
    second = one.run()
    roll_back(one.settings, NAME)
    detector_versions.pins_file(one.settings).write_text("{")
    assert version_in_force(one.settings, NAME) == second


def test_a_followed_catalog_is_read_again_when_a_file_or_the_version_in_force_has_changed(one: Installation) -> None:
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
    roll_back(one.settings, NAME)
    assert followed.read().detector(NAME).levels.email == 50
