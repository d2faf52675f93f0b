"""What versions of days say of themselves."""

from __future__ import annotations

import json
from pathlib import Path

from tests.rig.samples.history import DAY, version
from tocsin.history.day_versions import read_version, write_version
from tocsin.history.places import VERSION_FILE, Places
from tocsin.platform.state_file import write_whole


def test_a_day_that_names_a_figure_of_earlier_days_reads(tmp_path: Path) -> None:
    places, written = Places(tmp_path, "logins"), version("v1")
    write_version(places, DAY, written)
    file = places.version(DAY, "v1") / VERSION_FILE
    old = json.loads(file.read_text())
    old["facts"]["quarantined"] = None
    write_whole(file, json.dumps(old))
    assert read_version(places, DAY, "v1") == written
