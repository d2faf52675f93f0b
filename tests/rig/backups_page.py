"""The two scripts of docs/run/backups.md, run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.rig.samples.project import ROOT
from tocsin.declare.settings import Settings


def backup_with(settings: Settings, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Back the installation of `settings` up to `folder`, which does not exist yet."""
    return _run(0, settings, environment, folder)


def restore_with(settings: Settings, environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return _run(1, settings, environment, folder)


def _run(
    number: int, settings: Settings, environment: dict[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    page = (ROOT / "docs" / "run" / "backups.md").read_text(encoding="utf-8")
    scripts: list[str] = re.findall(r"^```bash\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert len(scripts) == 2, "one script backs up, the other restores"
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    own = environment | {"PATH": path, "STATE": str(settings.state), "BACKUP": str(folder)}
    return subprocess.run(
        ["bash", "-c", scripts[number]], env=own, cwd=settings.project, capture_output=True, text=True, check=False
    )
