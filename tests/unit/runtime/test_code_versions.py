"""Versions that ran are kept, and an earlier one can be put in force."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.rig.samples.project import copy_project
from tocsin.model.errors import ConfigError
from tocsin.project.catalog import read_catalog
from tocsin.project.code.versioned_kinds import versioned_job
from tocsin.project.settings import Settings
from tocsin.runtime import code_versions
from tocsin.runtime.code_versions import (
    KEPT,
    FollowedCatalog,
    catalog_in_force,
    keep_version,
    kept_file,
    kept_versions,
    read_pins,
    roll_back,
    roll_forward,
    version_in_force,
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
        """What a job does that starts; the version that is in force."""
        spec = catalog_in_force(self.settings).detector(NAME)
        keep_version(self.settings, JOB, spec.version, spec.path.read_bytes(), fingerprint)
        return spec.version


@pytest.fixture
def one(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def test_the_version_before_is_in_force_until_the_file_changes(one: Installation) -> None:
    first = one.run()
    one.edit(60)
    second = one.run("f2")
    assert roll_back(one.settings, JOB).version == first
    assert one.run() == first
    assert catalog_in_force(one.settings).detector(NAME).levels.email == 50
    assert [v.version for v in kept_versions(one.settings, JOB)] == [first, second], "in the order of their first start"
    one.edit(70)
    assert version_in_force(one.settings, JOB) not in (first, second)
    assert read_pins(one.settings) == {}


def test_back_twice_is_two_versions_back_and_forward_is_the_file(one: Installation) -> None:
    first = one.run()
    one.edit(60)
    second = one.run()
    one.edit(70)
    third = one.run()
    assert roll_back(one.settings, JOB).version == second
    assert roll_back(one.settings, JOB).version == first
    with pytest.raises(ConfigError, match="no version that ran before"):
        roll_back(one.settings, JOB)
    assert roll_forward(one.settings, JOB)
    assert version_in_force(one.settings, JOB) == third
    assert not roll_forward(one.settings, JOB)


def test_a_version_that_never_ran_is_gone_back_from_too(one: Installation) -> None:
    first = one.run()
    one.edit(60)
    assert roll_back(one.settings, JOB).version == first


def test_a_file_that_cannot_be_read_is_no_hindrance(one: Installation) -> None:
    first = one.run()
    one.file.write_text("this is no Python")
    assert version_in_force(one.settings, JOB) == ""
    assert roll_back(one.settings, JOB).version == first
    catalog = catalog_in_force(one.settings)
    assert catalog.detector(NAME).version == first
    assert not catalog.broken


def test_what_does_not_touch_the_findings_is_that_of_the_file(one: Installation) -> None:
    one.run()
    one.edit(60, **{'stage="live"': 'stage="shadow"'})
    one.run()
    roll_back(one.settings, JOB)
    spec = catalog_in_force(one.settings).detector(NAME)
    assert spec.levels.email == 50
    assert spec.stage == "shadow"


def test_a_file_that_is_gone_is_no_detector(one: Installation) -> None:
    one.run()
    one.edit(60)
    one.run()
    roll_back(one.settings, JOB)
    one.file.unlink()
    assert NAME not in catalog_in_force(one.settings).detectors
    with pytest.raises(ConfigError, match="no detector"):
        roll_back(one.settings, JOB)


def test_a_version_by_its_name(one: Installation) -> None:
    first = one.run()
    for email in (60, 70, 80):
        one.edit(email)
        one.run()
    assert roll_back(one.settings, JOB, first).version == first
    with pytest.raises(ConfigError, match=f"no version '{first[:-1]}x' is kept .*did you mean '{first}'"):
        roll_back(one.settings, JOB, f"{first[:-1]}x")
    assert version_in_force(one.settings, JOB) == first, "a mistake changes nothing"


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
    spec, text = catalog_in_force(one.settings).detector(NAME), one.file.read_bytes()
    keep_version(one.settings, JOB, spec.version, text, "f1")
    one.edit(60)
    keep_version(one.settings, JOB, spec.version, text, "f1")
    one.run()
    roll_back(one.settings, JOB)
    assert catalog_in_force(one.settings).detector(NAME).levels.email == 50


def test_a_broken_file_of_pins_starts_no_version_that_was_rolled_back(one: Installation) -> None:
    one.run()
    one.edit(60)
    one.run()
    roll_back(one.settings, JOB)
    followed = FollowedCatalog(one.settings)
    before = followed.read()
    code_versions.pins_file(one.settings).write_text("{")
    with pytest.raises(ConfigError, match=r"pins.json: is broken.* restore it from a backup, or remove it"):
        catalog_in_force(one.settings)
    assert followed.read() is before
    with pytest.raises(ConfigError, match="is broken"):
        FollowedCatalog(one.settings).read()
    code_versions.pins_file(one.settings).unlink()
    assert followed.read().detector(NAME).levels.email == 60


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
    roll_back(one.settings, JOB)
    assert followed.read().detector(NAME).levels.email == 50


class Flows:
    """A project with two flows, one of which has run in two versions."""

    def __init__(self, folder: Path) -> None:
        shutil.copytree(ROOT / "examples" / "words", folder / "project")
        self.settings = Settings(project=folder / "project", state=folder / "state")
        self.file = folder / "project" / "flows" / "words.py"
        self.first = self.run()
        self.edit("\"word != ''\"", "\"word != '' AND word != 'a'\"")
        self.second = self.run()

    def edit(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def run(self) -> str:
        spec = catalog_in_force(self.settings).flow("words")
        keep_version(self.settings, WORDS, spec.version, spec.path.read_bytes(), "query")
        return spec.version


@pytest.fixture
def flows(tmp_path: Path) -> Flows:
    return Flows(tmp_path)


def test_a_flow_goes_back_and_forward_as_a_detector_does(flows: Flows) -> None:
    assert [v.version for v in kept_versions(flows.settings, WORDS)] == [flows.first, flows.second]
    flows.edit('stage="live"', 'stage="shadow"')
    assert roll_back(flows.settings, WORDS).version == flows.first
    spec = catalog_in_force(flows.settings).flow("words")
    assert (spec.version, spec.stage) == (flows.first, "shadow"), "what does not compute is that of the file"
    assert "AND word" not in spec.path.read_text()
    assert roll_forward(flows.settings, WORDS)
    assert version_in_force(flows.settings, WORDS) == flows.second


def test_a_flow_whose_file_cannot_be_read_goes_back_too(flows: Flows) -> None:
    flows.file.write_text("this is no Python")
    assert roll_back(flows.settings, WORDS, flows.first).version == flows.first
    catalog = catalog_in_force(flows.settings)
    assert (catalog.flow("words").version, catalog.broken) == (flows.first, {})
    assert [feeder.job for feeder in catalog.upstream("words")] == [WORDS, "ingest:lines"]


@pytest.mark.parametrize("is_readable", [True, False])
def test_a_flow_does_not_go_back_to_another_source(flows: Flows, is_readable: bool) -> None:
    """Where it is in one source is nowhere in another, and what it wrote may be another flow's by now."""
    other = flows.file.with_name("text_transformer.py")
    text = other.read_text()
    assert 'to="shouted"' in text
    other.write_text(text.replace('to="shouted"', 'to="words"'))
    flows.file.write_text(text if is_readable else "this is no Python")
    with pytest.raises(ConfigError, match="cannot run any more"):
        roll_back(flows.settings, WORDS, flows.first)
    assert read_pins(flows.settings) == {}, "nothing has changed"


def test_an_earlier_version_that_joins_a_table_that_is_gone_does_not_run(one: Installation) -> None:
    one.edit(50, **{'stage="live"': 'stage="live", tables=["gone"]', "(events: DataFrame)": "(events, tables)"})
    (one.settings.project / "tables").mkdir()
    table = 'title = "a"\nowner = "a@example.com"\nsource = "logins"\nkey = "user_id"\nsettle = "1 minute"\n'
    (one.settings.project / "tables" / "gone.toml").write_text(
        f'{table}[schema]\nuser_id = "string"\naction = "string"'
    )
    first = one.run()
    one.file.write_text(one.text)
    one.run()
    assert roll_back(one.settings, JOB).version == first
    (one.settings.project / "tables" / "gone.toml").unlink()
    assert version_in_force(one.settings, JOB) != first
    roll_forward(one.settings, JOB)
    with pytest.raises(ConfigError, match="cannot run any more"):
        roll_back(one.settings, JOB, first)


def test_a_name_is_that_of_a_detector_or_a_flow(flows: Flows) -> None:
    assert versioned_job(read_catalog(flows.settings.project), "words") == WORDS
    (flows.settings.project / "detectors").mkdir()
    (flows.settings.project / "detectors" / "words.py").write_text("broken")
    catalog = read_catalog(flows.settings.project)
    with pytest.raises(ConfigError, match="say detector:words or flow:words"):
        versioned_job(catalog, "words")
    assert versioned_job(catalog, WORDS) == WORDS
    with pytest.raises(ConfigError, match=r"no detector or flow 'word' .*did you mean 'words'"):
        versioned_job(catalog, "word")


def test_a_table_is_a_file_that_a_followed_catalog_follows(one: Installation) -> None:
    followed = FollowedCatalog(one.settings)
    before = followed.read()
    (one.settings.project / "tables").mkdir()
    (one.settings.project / "tables" / "new.toml").write_text("broken")
    assert "tables/new" in followed.read().broken
    assert "tables/new" not in before.broken
