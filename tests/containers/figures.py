"""What is special in the profile `observability`: Prometheus has our figures, and understands rules and dashboard."""

from functools import partial

from tests.containers.composed import Composed
from tests.rig.dashboard_files import PANELS, RULES_OF_ALERTS
from tests.rig.prometheus_server import Prometheus
from tests.rig.waiting import await_that
from tocsin.dev.servers.ports import LOOPBACK

_SCRAPE_SECONDS = 120


def is_scraped(stack: Composed, jobs: str) -> str:
    """Prometheus scrapes the exporter, and has loaded our rules"""
    observer = _observer(stack)
    for expected in ('up{job="tocsin"} == 1', "tocsin_findings_total > 0"):
        await_that(partial(observer.query, expected), _SCRAPE_SECONDS, lambda: observer.ask("targets"))
    names = {one["metric"]["__name__"] for one in observer.query('{__name__=~"tocsin_.+"}')}
    rules = [rule for group in observer.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"] for rule in rules} == {rule["alert"] for rule in RULES_OF_ALERTS}
    assert {rule["health"] for rule in rules} == {"ok"}, rules
    return f"{len(names)} figures of ours; {len(rules)} rules, all evaluated"


def feeds_the_dashboard(stack: Composed, jobs: str) -> str:
    """Every expression of the dashboard is understood"""
    observer = _observer(stack)
    silent = [name for name, expression in PANELS.items() if not observer.query(expression)]
    return f"{len(PANELS)} expressions; no figures yet for {', '.join(silent) or 'none'}"


def _observer(stack: Composed) -> Prometheus:
    return Prometheus(f"http://{LOOPBACK}:{stack.ports['PROMETHEUS_PORT']}")
