"""The files of docs/run/observability, as Prometheus and Grafana read them."""

import json
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with yamllint; its stubs are one more package for one call

from tocsin.setup.paths import here

FOLDER = here().root / "docs" / "run" / "observability"
RULES_OF_ALERTS = [
    rule for group in yaml.safe_load((FOLDER / "alert-rules.yml").read_text())["groups"] for rule in group["rules"]
]


def _expressions(dashboard: dict[str, Any]) -> dict[str, str]:
    """List its expressions by their place in it."""
    targets = [(panel["title"], target) for panel in dashboard["panels"] for target in panel["targets"]]
    return {f"{title} {target['refId']}": target["expr"] for title, target in targets}


TOCSIN_DASHBOARD, AIRFLOW_DASHBOARD = DASHBOARDS = [
    json.loads((FOLDER / "grafana" / f"{name}.json").read_text(encoding="utf-8")) for name in ("tocsin", "airflow")
]
PANELS, AIRFLOW_PANELS = _expressions(TOCSIN_DASHBOARD), _expressions(AIRFLOW_DASHBOARD)
