import re
from pathlib import Path

import pytest

from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.setting_blocks import AlertSettings, DrainSettings
from tocsin.declare.settings import Settings
from tocsin.supervise.dag_specs import DagSpec, dag_specs


def declare(project: Path, name: str, **changes: str) -> None:
    """A detector like `failed_logins`, with some values of its declaration replaced."""
    text = (project / "detectors" / "failed_logins.py").read_text()
    for key, value in changes.items():
        text, count = re.subn(rf'    {key}="[^"]*"', f'    {key}="{value}"', text)
        assert count == 1
    (project / "detectors" / f"{name}.py").write_text(text)


def by_dag(catalog: Catalog, off: dict[str, bool] | None = None) -> dict[str, DagSpec]:
    made = dag_specs(catalog, off or {}, Settings())
    assert [dag.dag for dag in made] == sorted(dag.dag for dag in made)
    return {dag.dag: dag for dag in made}


def test_a_file_whose_name_is_not_valid_takes_no_other_s_dag_and_has_one_that_airflow_takes(project: Path) -> None:
    for name in ("failed logins", "x" * 250):
        declare(project, name)
    found = by_dag(read_catalog(project))
    assert found["detector__failed_logins"].title.startswith("Bursts of failed logins")
    broken = [dag for dag in found.values() if dag.title.startswith("Broken")]
    assert {dag.jobs[0] for dag in broken} == {"detector:failed logins", f"detector:{'x' * 250}"}
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]{1,220}", dag.dag) for dag in broken)


def test_a_detector_s_dag_says_what_its_file_says(project: Path) -> None:
    catalog = read_catalog(project)
    dag = by_dag(catalog)["detector__failed_logins"]
    assert dag.jobs == ("detector:failed_logins",)
    assert dag.title == "Bursts of failed logins by one user (credential stuffing, password guessing)."
    assert dag.owner == "security@example.com"
    assert dag.tags == ("detector", "live", "logins")
    assert not dag.paused
    for said in ("one account tried many times", "email above 50", "docs/runbooks/failed_logins.md"):
        assert said.replace("email", "e-mail") in dag.doc
    assert catalog.detector("failed_logins").version in dag.doc


def test_a_card_shows_the_file_whatever_fences_stand_in_it(project: Path) -> None:
    file = project / "detectors" / "failed_logins.py"
    file.write_text(file.read_text() + "\n# ```` ends nothing\n")
    (_, shown) = by_dag(read_catalog(project))["detector__failed_logins"].doc.split("## detectors/failed_logins.py\n\n")
    assert shown == f"`````python\n{file.read_text()}`````\n"


@pytest.mark.parametrize("stage", ["draft", "shadow", "live", "retired"])
def test_a_new_dag_is_on_so_that_promotion_is_an_edit_alone_unless_it_was_switched(project: Path, stage: str) -> None:
    declare(project, "other", stage=stage)
    catalog = read_catalog(project)
    assert by_dag(catalog)["detector__other"].paused is False
    for kept in (True, False):
        assert by_dag(catalog, {"detector__other": kept})["detector__other"].paused == kept


def test_a_broken_file_is_a_card_of_its_own_and_hides_no_other(project: Path) -> None:
    declare(project, "other", window="ten seconds or so")
    (project / "detectors" / "worse.py").write_text("def detect(:")
    made = by_dag(read_catalog(project))
    assert sorted(made) == ["detector__failed_logins", "detector__other", "detector__worse", "platform"]
    assert "broken" not in made["detector__failed_logins"].tags
    for name, fault in (("other", "ten seconds or so"), ("worse", "is not Python")):
        dag = made[f"detector__{name}"]
        assert dag.tags == ("detector", "broken")
        assert fault in dag.title
        assert fault in dag.doc
        assert not dag.paused, "it starts when it is repaired"
    assert by_dag(read_catalog(project), {"detector__worse": True})["detector__worse"].paused


def test_a_broken_source_breaks_its_detectors_and_is_no_dag(project: Path) -> None:
    (project / "sources" / "logins.toml").write_text("?")
    made = by_dag(read_catalog(project))
    assert sorted(made) == ["detector__failed_logins", "platform"]
    assert "source 'logins' is broken" in made["detector__failed_logins"].doc


def test_each_page_leads_to_the_tab_of_its_jobs(project: Path) -> None:
    (project / "detectors" / "worse.py").write_text("def detect(:")
    for dag, spec in by_dag(read_catalog(project)).items():
        assert f"[Job](dags/{dag}/plugin/job)" in spec.doc


def test_all_other_jobs_share_a_card(project: Path) -> None:
    dag = by_dag(read_catalog(project))["platform"]
    assert dag.jobs == ("engine:live-1", "ingest:logins", "indexer", "notifier", "web")
    assert (dag.owner, dag.paused) == ("", False)


def test_who_gets_the_news(project: Path) -> None:
    declare(project, "other", owner="fraud@example.com")
    catalog = read_catalog(project)
    assert by_dag(catalog)["detector__other"].recipients == {"detector:other": "fraud@example.com"}
    assert set(by_dag(catalog)["platform"].recipients.values()) == {"platform@example.com"}
    alerts = AlertSettings(urgent_recipients=("a@example.com", "b@example.com"))
    settings = Settings(alerts=alerts, drain=DrainSettings(credentials_file=Path("passwords")))
    (shared,) = [dag for dag in dag_specs(catalog, {}, settings) if dag.dag == "platform"]
    on_call = "a@example.com, b@example.com"
    others = dict.fromkeys(("engine:live-1", "indexer", "notifier", "drain", "web"), on_call)
    assert shared.recipients == {"ingest:logins": "platform@example.com"} | others


def test_a_flow_and_a_view_are_switched_like_a_detector_and_a_view_with_both_its_jobs() -> None:
    words = read_catalog(Path(__file__).parents[3] / "examples" / "words")
    made = by_dag(words, {"flow__words": True})
    assert made["flow__words"].jobs == ("flow:words",)
    assert (made["flow__words"].paused, made["flow__words"].tags) == (True, ("flow", "live", "lines"))
    assert made["view__word_counts"].jobs == ("compute:word_counts", "view:word_counts")
    assert set(made["view__word_counts"].recipients) == {"compute:word_counts", "view:word_counts"}
    assert "flow:words" not in made["platform"].jobs
    assert "`restart`" not in made["view__word_counts"].doc
