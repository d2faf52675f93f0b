"""From a clean clone to the first alert mail: `make demo`, with empty caches and with full ones."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from bench.figures import Goal, table
from tocsin.setup.paths import here

_LIMIT_SECONDS = 1200
_GOALS = {"empty caches": 300.0, "full caches": 90.0}
_OF_THIS_CHECKOUT = ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")


def measure(folder: Path) -> dict[str, float]:
    """Seconds to the first mail: in a clone with empty caches of its own, and in a second one that finds them full."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        caches = Path(scratch) / "caches"
        return {name: _demo(Path(scratch) / name.replace(" ", "-"), caches) for name in _GOALS}


def report(found: dict[str, float]) -> tuple[str, list[Goal]]:
    """The table, and the goals."""
    rows = [{"clone": name, "seconds to the first mail": seconds} for name, seconds in found.items()]
    goals = [Goal(f"install to first mail, {name}", found[name], bound, " s") for name, bound in _GOALS.items()]
    return table(rows), goals


def _demo(clone: Path, caches: Path) -> float:
    """Clone, `make demo`, wait for the mail, Ctrl-C; everything that was started has ended when this returns."""
    subprocess.run(["git", "clone", "--quiet", here().root, clone], check=True)
    began, log = time.monotonic(), clone.with_suffix(".log")
    with log.open("wb") as out:
        demo = subprocess.Popen(
            ["make", "demo"], cwd=clone, env=_environment(caches), stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        while time.monotonic() - began < _LIMIT_SECONDS and demo.poll() is None:
            if _mails(log.read_text(errors="replace")):
                return time.monotonic() - began
            time.sleep(0.5)
        waited, said = time.monotonic() - began, log.read_text(errors="replace")[-3000:]
        raise RuntimeError(f"no mail after {waited:.0f} s (make: {demo.poll()}); the end of the log:\n{said}")
    finally:
        _interrupt(demo)
        shutil.rmtree(clone, ignore_errors=True)


def _environment(caches: Path) -> Mapping[str, str]:
    """The environment of a new user: nothing of this checkout, and caches of its own for pip and uv."""
    kept = {key: value for key, value in os.environ.items() if key not in _OF_THIS_CHECKOUT and "TOCSIN" not in key}
    mine = str(here().venv / "bin")
    kept["PATH"] = os.pathsep.join(part for part in kept["PATH"].split(os.pathsep) if part != mine)
    names = {"XDG_CACHE_HOME": "", "PIP_CACHE_DIR": "pip", "UV_CACHE_DIR": "uv"}
    return kept | {variable: str(caches / name) for variable, name in names.items()}


def _mails(log: str) -> int:
    """How many mails the sink holds whose web address the demo has printed."""
    for address in re.findall(r"http://127\.0\.0\.1:\d+", log):
        with suppress(OSError, ValueError), urllib.request.urlopen(f"{address}/mails.json", timeout=2) as answer:
            return len(json.load(answer))
    return 0


def _interrupt(demo: subprocess.Popen[bytes]) -> None:
    members: list[psutil.Process] = []
    if demo.poll() is None:
        members = psutil.Process(demo.pid).children(recursive=True)
        os.killpg(demo.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        demo.wait(60)
    for process in members:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    demo.wait()
