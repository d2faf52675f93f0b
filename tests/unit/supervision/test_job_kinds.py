"""Adding a kind of job takes one entry in the registry, and the room with its code."""

from pathlib import Path

import grimp
import pytest

from tocsin.project.catalog import read_catalog
from tocsin.project.settings import Settings
from tocsin.supervision.incidents.watch import owners
from tocsin.supervision.job_kinds import KINDS, JobKind, desired_jobs
from tocsin.supervision.job_states import Desired
from tocsin.supervision.runners.job_command import job_launch
from tocsin.supervision.runners.process_labels import Labels
from tocsin.web.board import Looker
from tocsin.web.job_rows import RowFacts, rows

ROOT = Path(__file__).resolve().parents[3]
EVERY_JOB_RUNS = {"model", "project", "runtime", "provision"}
ARCHIVER = JobKind(
    word="archiver",
    program="tocsin.archive",
    rooms=(),
    desired=lambda catalog, settings, code: {"cold": Desired(code)},
    declared=lambda catalog: {"cold": catalog.sources["logins"]},
    folder="archives",
    suffix=".toml",
)


def test_a_new_kind_is_desired_started_told_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, ARCHIVER.word, ARCHIVER)
    settings, catalog, job = Settings(project=ROOT, state=tmp_path), read_catalog(ROOT), "archiver:cold"
    assert desired_jobs(catalog, settings)[job].readable
    command = job_launch(settings, Labels("shop-1", job, "abc"), Path("/java")).command
    assert command[1:4] == ("-m", "tocsin.archive", "cold")
    assert owners(catalog, settings)[job] == catalog.sources["logins"].owner
    title = catalog.sources["logins"].title
    (row,) = [row for row in rows(Looker(settings).look(), RowFacts()) if row.job == job]
    assert (row.kind, row.name, row.title, row.state) == ("archiver", "cold", title, "not running")


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.word)
def test_a_job_is_replaced_when_code_that_it_runs_has_changed(kind: JobKind) -> None:
    module = kind.program.removesuffix(".py").replace("/", ".")
    graph = grimp.build_graph("tocsin", "spark_jobs", cache_dir=None)
    runs = graph.find_upstream_modules(module if kind.program.endswith(".py") else f"{module}.__main__")
    places = {room.removesuffix(".py") for room in (*kind.rooms, *EVERY_JOB_RUNS)}
    run = {name.removeprefix("tocsin.").replace(".", "/") for name in runs if name.count(".") > 1}
    packages = {place.rpartition("/")[0] for place in places}
    assert [one for one in run if not any(f"{one}/".startswith(f"{place}/") for place in places)
            and one not in packages] == []  # fmt: skip
    root = ROOT / "src" / "tocsin"
    assert all((root / room).is_file() or any((root / room).rglob("*.py")) for room in kind.rooms), "it is not there"
