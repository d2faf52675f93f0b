"""Versions that ran are kept, and files that change are read again."""

import shutil
from pathlib import Path

import pytest

from tests.rig.samples.project import copy_project
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.settings import Settings
from tocsin.platform.code_versions import (
    KEPT,
    FollowedCatalog,
    keep_version,
    kept_detector,
    kept_file,
    kept_versions,
)

ROOT = Path(__file__).parents[3]
NAME = "failed_logins"
JOB = f"detector:{NAME}"


class Installation:
    """A project with one detector whose file is edited."""

    def __init__(self, folder: Path) -> None:
        self.settings = Settings(project=folder / "project", state=folder / "state")
        copy_project(folder / "project")
        self.file = folder / "project" / "detectors" / f"{NAME}.py"
        self.text = self.file.read_text()

    def edit(self, email: int) -> None:
        """Give the file another limit, and so another version."""
        self.file.write_text(self.text.replace("email=50", f"email={email}"))

    def run(self, fingerprint: str = "f1") -> str:
        """What a job does that starts; its version."""
        spec = read_catalog(self.settings.project).detector(NAME)
        keep_version(self.settings, JOB, spec.version, spec.path.read_bytes(), fingerprint)
        return spec.version


@pytest.fixture
def one(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


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


def test_a_name_is_that_of_a_detector_or_a_flow(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(ROOT / "examples" / "words", project)
    assert read_catalog(project).versioned_job("words") == "flow:words"
    (project / "detectors").mkdir()
    (project / "detectors" / "words.py").write_text("broken")
    catalog = read_catalog(project)
    with pytest.raises(ConfigError, match="say detector:words or flow:words"):
        catalog.versioned_job("words")
    assert catalog.versioned_job("flow:words") == "flow:words"
    with pytest.raises(ConfigError, match=r"no detector or flow 'word' .*did you mean 'words'"):
        catalog.versioned_job("word")


@pytest.mark.parametrize("file", ["lib/new.py", "tables/new.toml"])
def test_a_module_of_lib_and_a_table_are_files_that_a_followed_catalog_follows(one: Installation, file: str) -> None:
    followed = FollowedCatalog(one.settings)
    before = followed.read()
    (one.settings.project / file).parent.mkdir()
    (one.settings.project / file).write_text("limit = 1\n")
    assert ("tables/new" in followed.read().broken) == file.startswith("tables")
    assert followed.read() is not before
