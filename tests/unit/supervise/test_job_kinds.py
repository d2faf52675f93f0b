"""Adding a kind of job takes its record, and the room with its code."""

import json
from dataclasses import replace
from pathlib import Path

import grimp
import pytest

from tests.rig.command_line import invoke
from tests.rig.waiting import await_that
from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.job_kinds import KINDS, JobKind
from tocsin.declare.setting_blocks import KafkaLogin, KafkaSettings, SmtpSettings
from tocsin.declare.settings import Settings, load_settings
from tocsin.platform import private
from tocsin.setup.paths import Paths
from tocsin.supervise import job_kinds
from tocsin.supervise.incidents.watch import owners
from tocsin.supervise.installed_jobs import job_launch
from tocsin.supervise.job_kinds import desired_jobs, forget_code
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels, instance_of

ROOT = Path(__file__).resolve().parents[3]
EVERY_JOB_RUNS = {"declare", "platform", "setup", "stats", "job.py"}
ARCHIVER = JobKind(word="archiver", run="archiver:run", title="Keeps what is cold", settings={"smtp": frozenset()})
# What a new kind adds: its code, and its record, here from outside the checkout.
CODE_OF_IT = """def run(job):
    job.reporter.update(state="running", reason="archives")
    job.stop.wait()
"""
RECORD_OF_IT = f"""from tocsin.declare.model.job_kinds import KINDS, JobKind
KINDS["archiver"] = JobKind(word="archiver", run="{ARCHIVER.run}")
"""


def test_a_new_kind_is_desired_started_and_shown_by_its_record_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, ARCHIVER.word, ARCHIVER)
    (tmp_path / "archiver.py").write_text(CODE_OF_IT)
    (tmp_path / "sitecustomize.py").write_text(RECORD_OF_IT)
    monkeypatch.setenv("TOCSIN_PROJECT", str(ROOT))
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    settings, catalog = load_settings(), read_catalog(ROOT)
    own = settings.model_copy(update={"smtp": SmtpSettings(host="mail.example")})
    desired = desired_jobs(catalog, settings)["archiver"]
    assert desired.readable and desired.spec != desired_jobs(catalog, own)["archiver"].spec, "its settings changed"
    assert owners(catalog, settings)["archiver"] == owners(catalog, settings)["indexer"]
    kafka = KafkaSettings(
        security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="me", sasl_password_file=tmp_path,
        logins={"archiver": KafkaLogin(username="x", password_file=tmp_path)},
    )  # fmt: skip
    assert kafka.for_role("archiver").sasl_username == "x"

    private.begin(settings.state)
    launch = job_launch(settings, Labels(instance_of(settings), "archiver", desired.spec), Path("/java"))
    launch = replace(launch, environment={**launch.environment, "PYTHONPATH": str(tmp_path)})
    monkeypatch.setattr("tocsin.platform.kafka.reporter.read_reports", lambda _: {})
    runner = LocalRunner(instance_of(settings), settings.log)
    runner.start(launch)
    try:
        await_that(lambda: '"archives"' in invoke(["status", "archiver", "--json"]).stdout, 60)
        (process,) = runner.list()
        runner.stop(process)
        await_that(lambda: runner.exit_code("archiver") == 0, 20)
    finally:
        for process in runner.list():
            runner.stop(process, force=True)


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.word)
def test_a_job_is_replaced_when_code_that_it_runs_has_changed(kind: JobKind) -> None:
    module = kind.run.partition(":")[0]
    graph = grimp.build_graph("tocsin", cache_dir=None)
    runs = {module} | graph.find_upstream_modules(module)
    root = ROOT / "src" / "tocsin"
    places = {room: list(root.glob(room)) for room in (*kind.rooms, *EVERY_JOB_RUNS)}
    assert all(places.values()), "it is not there"
    known = {found for held in places.values() for place in held for found in (place, *place.rglob("*.py"))}
    run = {root.joinpath(*name.split(".")[1:]).with_suffix(".py") for name in runs}
    assert {path for path in run if path.is_file()} - known == set()


CODE = '''"""What it is for."""

LIMIT = 3
"""So many."""


def passes(count: int) -> bool:
    """Return whether it passes."""
    return count > LIMIT  # strictly
'''


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A platform with one module, which the jobs of one kind run."""
    monkeypatch.setattr("tocsin.supervise.job_kinds.here", lambda: Paths(tmp_path, tmp_path))
    kinds = {ARCHIVER.word: replace(ARCHIVER, rooms=("archive",))}
    monkeypatch.setattr("tocsin.supervise.job_kinds.KINDS", kinds)
    module = tmp_path / "src" / "tocsin" / "archive" / "passing.py"
    module.parent.mkdir(parents=True)
    module.write_text(CODE)
    return module


def identity(platform: Path) -> str:
    forget_code()
    state = platform.parents[3] / "state"
    return desired_jobs(Catalog(), Settings(project=ROOT, state=state))["archiver"].spec


@pytest.mark.parametrize("has_state", [True, False])
def test_an_edit_that_changes_no_behaviour_leaves_the_identity_and_any_other_changes_it(
    platform: Path, has_state: bool
) -> None:
    if has_state:
        (platform.parents[3] / "state").mkdir()
    before = identity(platform)
    assert identity(platform) == before
    for old, new in (
        ("What it is for", "For what it is"),
        ("So many", "As many as this"),
        ("whether it passes", "if it passes"),
        ("  # strictly", ""),
        ('    """Return whether it passes."""\n', ""),
        ("count > LIMIT", "(count >\n            LIMIT)"),
    ):
        assert old in CODE
        platform.write_text(CODE.replace(old, new))
        assert identity(platform) == before, new
    for old, new in (("count > LIMIT", "count >= LIMIT"), ("LIMIT = 3", "LIMIT = 4"), ("passes", "accepts")):
        platform.write_text(CODE.replace(old, new))
        assert identity(platform) != before, new
    platform.write_text(CODE)
    platform.rename(platform.with_name("other.py"))
    assert identity(platform) != before, "a module of another name"


@pytest.mark.parametrize("content", ["def (", "\0"])
def test_a_module_that_is_no_python_is_known_by_its_bytes(platform: Path, content: str) -> None:
    platform.write_text(content)
    before = identity(platform)
    assert identity(platform) == before
    platform.write_text(f"{content} #")
    assert identity(platform) != before


def test_what_was_parsed_once_is_not_parsed_again_and_a_broken_note_of_it_is_made_anew(
    platform: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = platform.parents[3] / "state"
    state.mkdir()
    before = identity(platform)
    with monkeypatch.context() as patch:
        patch.setattr(job_kinds, "parse", lambda _: pytest.fail("parsed again"))
        assert identity(platform) == before, "by the same process"
        patch.setattr(job_kinds, "_PARSED", {})
        assert identity(platform) == before, "by another one"
    monkeypatch.setattr(job_kinds, "_PARSED", {})
    (state / "code.json").write_text("{")
    assert identity(platform) == before
    assert len(json.loads((state / "code.json").read_text())) == 1
