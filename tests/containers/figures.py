"""What is special in the profile `observability`: Prometheus has our figures, and understands rules and dashboard."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from typing import Any

from tests.containers.composed import Composed
from tests.rig.dashboard_files import PANELS, RULES_OF_ALERTS
from tests.rig.waiting import await_that
from tocsin.dev.servers.ports import LOOPBACK

_SCRAPE_SECONDS = 120


def is_scraped(stack: Composed, jobs: str) -> str:
    """Prometheus scrapes the exporter, and has loaded our rules"""
    await_that(lambda: _query(stack, 'up{job="tocsin"} == 1'), _SCRAPE_SECONDS, lambda: _ask(stack, "targets"))
    await_that(lambda: _query(stack, "tocsin_findings_total > 0"), _SCRAPE_SECONDS, lambda: _ask(stack, "targets"))
    names = {one["metric"]["__name__"] for one in _query(stack, '{__name__=~"tocsin_.+"}')}
    rules = [rule for group in _ask(stack, "rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in RULES_OF_ALERTS}
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    return f"{len(names)} figures of ours; {len(rules)} rules, all evaluated"


def feeds_the_dashboard(stack: Composed, jobs: str) -> str:
    """Every expression of the dashboard is understood"""
    silent = [name for name, expression in PANELS.items() if not _query(stack, expression)]
    return f"{len(PANELS)} expressions; no figures yet for {', '.join(silent) or 'none'}"


def _query(stack: Composed, expression: str) -> list[Any]:
    found: list[Any] = _ask(stack, f"query?query={urllib.parse.quote(expression)}")["result"]
    return found


def _ask(stack: Composed, path: str) -> Any:
    """Ask its API; an expression that it does not understand is an HTTP error."""
    url = f"http://{LOOPBACK}:{stack.ports['PROMETHEUS_PORT']}/api/v1/{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)["data"]
