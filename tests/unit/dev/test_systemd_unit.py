"""The unit for systemd: systemd's own check finds nothing in it, and it says what the platform's exit codes mean."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tocsin.platform.process_exit import ExitCode
from tocsin.setup.paths import here

UNIT = here().root / "docs/run/systemd/tocsin.service"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="install systemd-analyze: apt-get install systemd")
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    installed = UNIT.read_text().replace("/opt/tocsin/.venv/bin", str(here().venv / "bin"))
    copy = tmp_path / UNIT.name
    copy.write_text(installed)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_wrong_setting_is_not_tried_again_and_state_is_kept_where_the_unit_may_write() -> None:
    options = dict(re.findall(r"^(\w+)=(.*)$", UNIT.read_text(), re.MULTILINE))
    assert int(options["RestartPreventExitStatus"]) == ExitCode.MISCONFIGURED
    assert f"TOCSIN_STATE=/var/lib/{options['StateDirectory']}" in options["Environment"]
    assert "MemoryDenyWriteExecute" not in options  # Java could not compile
