"""Airflow's own metrics as a real Prometheus has them: by the names in docs/run/metrics.md, as the dashboard asks."""

import re
from pathlib import Path

import pytest

from tests.rig.dashboard_files import AIRFLOW_PANELS
from tests.rig.prometheus_server import program, prometheus
from tests.rig.stack import ROOT, Stack
from tests.rig.under_airflow import Running
from tests.rig.waiting import await_that

PROCESSES = 5  # of four components, one of them with another for triggers
PAGE = ROOT / "docs" / "run" / "metrics.md"


@pytest.mark.long
def test_prometheus_has_the_metrics_of_airflow_that_page_and_dashboard_name(tmp_path: Path) -> None:
    named = set(re.findall(r"`(airflow_\w+)`", PAGE.read_text(encoding="utf-8")))
    assert named
    receiver = program("prometheus", newer=True)
    (tmp_path / "prometheus.yml").write_text("")
    stack = Stack(tmp_path / "airflow", sources=False)
    with prometheus(receiver, tmp_path / "prometheus.yml", "--web.enable-otlp-receiver") as observer:
        url = f"{observer.url}/api/v1/otlp/v1/metrics"
        (stack.project / "tocsin.toml").write_text(f'[airflow]\nmetrics_url = "{url}"\n')
        try:
            stack.up("--free-ports", "--airflow")
            stack.ready()
            running = Running(stack)
            running.await_end("housekeeping", running.admin.trigger("housekeeping"), "success")
            every = '{__name__=~"airflow_.+"}'
            await_that(
                lambda: named <= set(observer.ask("label/__name__/values") or ()),
                120,
                lambda: sorted(name for name in observer.ask("label/__name__/values") if name.startswith("airflow_")),
            )
            await_that(
                lambda: all(observer.query(expression) for expression in AIRFLOW_PANELS.values()),
                60,
                lambda: [name for name, expression in AIRFLOW_PANELS.items() if not observer.query(expression)],
            )
            instances = {one["metric"]["instance"] for one in observer.query(every)}
            assert len(instances) <= PROCESSES, "tasks, of which each is another process, send nothing"
        finally:
            stack.end()
