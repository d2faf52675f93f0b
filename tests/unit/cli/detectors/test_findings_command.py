"""`tocsin findings` before and after the indexer has taken what backfills have published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rig.command_line import invoke
from tests.rig.samples.backfills import DAY, NEXT, SPEC, finding, published
from tocsin.declare.settings import Settings
from tocsin.history.backfill.backfill_ledger import Backfills, Made


@pytest.fixture
def backfills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backfills:
    monkeypatch.setenv("TOCSIN_STATE", str(tmp_path / "state"))
    made = Backfills(Settings(state=tmp_path / "state"), SPEC.name)
    for day, users in ((DAY, ("ann", "bob")), (NEXT, ("ann",))):
        found = [finding(user, day, second=10 * number) for number, user in enumerate(users)]
        made.publish(day, found, published(Made(version=SPEC.version, inputs={}), made.next_run(day)))
    return made


def listed(*words: str) -> list[Any]:
    return [(one["finding"]["entity"]["user_id"], one["finding"]["origin"], one["alert"])
            for one in json.loads(invoke(["findings", "--json", *words]).stdout)]  # fmt: skip


def test_findings_of_a_backfill_are_listed_before_any_stack_runs(backfills: Backfills) -> None:
    assert listed() == [("ann", "backfill", None), ("bob", "backfill", None), ("ann", "backfill", None)]
    assert listed("--limit", "1") == [("ann", "backfill", None)]
    assert len(listed("--entity", "bob", "--detector", SPEC.name)) == 1
    assert listed("--since", "2026-11-20T00:00:00Z") == [("ann", "backfill", None)]
    assert listed("--level", "urgent") == listed("--detector", "other") == []
    done = invoke(["findings", "--exit-code"])
    assert done.exit_code == 1
    assert "3 findings of backfills without alerts yet" in done.stderr


def test_a_day_that_cannot_be_read_hides_no_other(backfills: Backfills) -> None:
    next(backfills.folder.glob(f"dt={DAY}/*")).write_bytes(b"broken")
    assert listed() == [("ann", "backfill", None)]
