"""The files of docs/observability, as Prometheus and Grafana read them."""

from __future__ import annotations

import json
from typing import Any

import yaml  # type: ignore[import-untyped]  # comes with yamllint; its stubs are one more package for one call

from tocsin.provision.paths import here

FOLDER = here().root / "docs" / "observability"
RULES_OF_ALERTS = [
    rule for group in yaml.safe_load((FOLDER / "alert-rules.yml").read_text())["groups"] for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana" / "tocsin.json").read_text(encoding="utf-8"))
TARGETS = [(panel["title"], target) for panel in DASHBOARD["panels"] for target in panel["targets"]]
PANELS = {f"{title} {target['refId']}": target["expr"] for title, target in TARGETS}
"""The expressions of the dashboard, by their place in it."""
