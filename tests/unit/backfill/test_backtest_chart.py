"""The chart of a backtest shows the counts of its report, whatever the values hold."""

from __future__ import annotations

import base64
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.image import imread
from matplotlib.patches import Rectangle

from tests.rig.command_line import invoke
from tests.rig.samples.backfills import finding
from tocsin.backfill.backtest_chart import check_chart_path, draw_backtest, write_chart
from tocsin.backfill.trial_report import BINS, Backtest, DayCount, OpenPart, ScoreBin, TopEntity, score_bins
from tocsin.model.errors import ConfigError, TransientError

FIRST = date(2026, 1, 1)
HOSTILE = ["$\\frac{", "<script>alert(1)</script>", "\x1b[2J\u202e", "用户", "x" * 500, ""]


def report(days: int = 30) -> Backtest:
    counts = [
        DayCount(
            day=FIRST + timedelta(days=n), events=1000 + n, findings=n % 7, urgent=n % 3 % (n % 7 + 1), alerts=n % 2
        )
        for n in range(days)
    ]
    top = [TopEntity(entity={"user_id": name}, findings=9 - n, highest_score=60) for n, name in enumerate(HOSTILE)]
    scores = score_bins(finding("u", second=10 * n, score=51.0 + n) for n in range(50))
    return Backtest(
        detector="failed_logins", version="abc", days=counts, top=top, limits={"email": 50.0, "urgent": 100.0},
        scores=scores, cpu_seconds=1, seconds=1,
    )  # fmt: skip


def heights(axes: Axes) -> list[float]:
    return [bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle)]


def test_the_bars_are_the_counts() -> None:
    found = report()
    findings, alerts, entities, scores = draw_backtest(found).axes
    count = len(found.days)
    email, urgent = heights(findings)[:count], heights(findings)[count:]
    assert urgent == [one.urgent for one in found.days]
    assert [low + high for low, high in zip(email, urgent, strict=True)] == [one.findings for one in found.days]
    assert heights(alerts) == [one.alerts for one in found.days]
    widths = [bar.get_width() for bar in entities.patches if isinstance(bar, Rectangle)]
    assert widths == [one.findings for one in reversed(found.top)]
    assert heights(scores) == [one.findings for one in found.scores]
    limits = [line.get_xdata()[0] for line in scores.lines]  # type: ignore[index]  # an array
    assert limits == [50, 100]
    assert str(sum(one.findings for one in found.days)) in findings.get_title(loc="left")


def test_a_picture_is_the_same_each_time_and_not_empty(tmp_path: Path) -> None:
    for name in ("one.png", "two.png"):
        write_chart(tmp_path / name, report())
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    pixels = imread(tmp_path / "one.png")
    assert pixels.shape[:2] == (1080, 1650)
    assert pixels.min() < 0.5 < pixels.max()


def test_a_page_holds_the_picture_and_escapes_what_it_says(tmp_path: Path) -> None:
    write_chart(tmp_path / "one.html", report(2).model_copy(update={"detector": "<b>"}))
    page = (tmp_path / "one.html").read_text()
    (picture,) = re.findall(r'base64,([^"]+)"', page)
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    assert "<b>" not in page
    assert "<td>2026-01-02<td>1,001<td>1<td>1<td>1" in page


def test_nothing_found_is_drawn_as_well(tmp_path: Path) -> None:
    part = OpenPart(day=FIRST, since=datetime(2026, 1, 1, tzinfo=UTC), until=datetime(2026, 1, 1, 1, tzinfo=UTC))
    write_chart(tmp_path / "x.png", report(0).model_copy(update={"top": [], "scores": [], "open": part}))
    assert (tmp_path / "x.png").stat().st_size > 5_000


@pytest.mark.parametrize("name", ["chart.pdf", "chart", "missing/chart.png"])
def test_a_chart_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"\.png or \.html|make its folder"):
        check_chart_path(tmp_path / name)
    asked = invoke(["backtest", "--detector", "failed_logins", "--plot", str(tmp_path / name)])
    assert isinstance(asked.exception, ConfigError)


def test_a_full_disk_keeps_the_chart_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "x.png").write_bytes(b"before")
    monkeypatch.setattr("tocsin.backfill.backtest_chart.write_whole", full)
    with pytest.raises(TransientError, match="No space left"):
        write_chart(tmp_path / "x.png", report(1))
    assert (tmp_path / "x.png").read_bytes() == b"before"


@given(st.lists(st.floats(-1e9, 1e12), min_size=1, max_size=60))
def test_each_finding_is_in_one_bin(scores: list[float]) -> None:
    bins = score_bins(finding("u", second=10 * n, score=score) for n, score in enumerate(scores))
    assert sum(one.findings for one in bins) == len(scores)
    assert (bins[0].low, bins[-1].high) == (min(scores), max(scores))
    assert len(bins) == (BINS if min(scores) < max(scores) else 1)
    for one in bins[:-1]:
        assert one.findings == sum(one.low <= score < one.high for score in scores)


def test_without_findings_there_are_no_bins() -> None:
    assert score_bins([]) == []
    assert score_bins([finding("u", score=60), finding("v", score=60)]) == [ScoreBin(low=60, high=60, findings=2)]
