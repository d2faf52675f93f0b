"""The rules and the dashboard in docs/run/observability: without Prometheus by the names in them, with it for real.

Where its programs are missing their tests are skipped, and say so.
"""

import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path

import yaml  # type: ignore[import-untyped]  # comes with yamllint; its stubs are one more package for one call
from prometheus_client import start_http_server

from tests.rig.dashboard_files import DASHBOARDS, FOLDER, PANELS, RULES_OF_ALERTS
from tests.rig.prometheus_server import program, prometheus
from tests.rig.waiting import await_that
from tests.unit.alerts.scene import burst, index
from tests.unit.web.metrics.installation import COUNTED, DETECTOR, INGEST, Installation, kafka_of
from tocsin.alerts.store.database import Database
from tocsin.declare.setting_blocks import MetricsSettings
from tocsin.web.metrics.exporter import Scrape

ROOT = FOLDER.parents[2]


def test_every_expression_names_metrics_that_are_served() -> None:
    page = (ROOT / "docs" / "run" / "metrics.md").read_text(encoding="utf-8")
    described = set(re.findall(r"^\| `(tocsin_\w+)", page, re.MULTILINE))
    for expression in (*PANELS.values(), *(rule["expr"] for rule in RULES_OF_ALERTS)):
        named = {re.sub(r"_bucket$", "", name) for name in re.findall(r"\btocsin_\w+", expression)}
        assert named <= described, expression


def test_every_alert_is_tested_both_ways_and_says_what_is_wrong() -> None:
    tests = yaml.safe_load((FOLDER / "alert-rules.test.yml").read_text())["tests"]
    names = [rule["alert"] for rule in RULES_OF_ALERTS]
    assert [test["name"] for test in tests] == [f"{name} {what}" for name in names for what in ("fires", "is quiet")]
    assert all(rule["annotations"]["summary"].endswith((".", "}}", "tocsin alerts")) for rule in RULES_OF_ALERTS)


def test_the_files_of_grafana_fit_together() -> None:
    (source,) = yaml.safe_load((FOLDER / "grafana" / "datasources.yml").read_text())["datasources"]
    for dashboard in DASHBOARDS:
        assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {source["uid"]}
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert len({dashboard["uid"] for dashboard in DASHBOARDS}) == len(DASHBOARDS)
    port = MetricsSettings().port
    assert f'"127.0.0.1:{port}"' in (FOLDER / "prometheus.yml").read_text()


def test_promtool_accepts_the_files_and_their_tests_pass() -> None:
    promtool = program("promtool")
    for words in (["check", "config", "prometheus.yml"], ["test", "rules", "alert-rules.test.yml"]):
        done = subprocess.run([promtool, *words], cwd=FOLDER, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def config_for(folder: Path, target: int) -> Path:
    """Write our configuration, but for the address and a scrape each second."""
    text = (FOLDER / "prometheus.yml").read_text().replace(":8435", f":{target}").replace("15s", "1s")
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(FOLDER / "alert-rules.yml", folder)
    return folder / "prometheus.yml"


def test_every_expression_of_the_dashboard_gives_figures_and_every_rule_evaluates(
    installation: Installation, tmp_path: Path
) -> None:
    server_program = program("prometheus")
    database = Database(f"sqlite:///{installation.settings.state / 'alerts.db'}")
    index(database, burst(110), now=datetime.now(UTC))
    database.close()
    with kafka_of(installation):
        reports = [
            installation.report(INGEST, counts=COUNTED),
            installation.report(DETECTOR, watermark=datetime.now(UTC)),
        ]
        installation.publish(*reports)
        server, thread = start_http_server(0, "127.0.0.1", registry=Scrape(installation.settings))
        with prometheus(server_program, config_for(tmp_path, server.server_port)) as observer:
            await_that(lambda: observer.query("count_over_time(tocsin_build_info[1m]) >= 3") != [], 60)
            installation.publish(
                *(installation.report(one.job, counts=one.counts, watermark=one.watermark) for one in reports)
            )
            empty = [name for name, expression in PANELS.items() if not observer.query(expression)]
            rules = [rule for group in observer.ask("rules")["groups"] for rule in group["rules"]]
        server.shutdown()
        thread.join()
        server.server_close()
    assert empty == []
    assert len(rules) == len(RULES_OF_ALERTS)
    assert {rule["health"] for rule in rules} == {"ok"}
    firing = {rule["name"] for rule in rules if rule["state"] != "inactive"}
    assert {"TocsinQuarantine", "TocsinJobProblem"} <= firing
    assert "TocsinExporterDown" not in firing
