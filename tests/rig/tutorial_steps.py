"""The first tutorial as its reader follows it: its commands are run, its files written, its outputs compared."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "write" / "tutorial.md"
_STACK = "tocsin dev up\n"
"""What runs in the first terminal; the test has it running."""
_PART = re.compile(
    r"^## (\d+)\.|`((?:sources|detectors)/\w+\.\w+)`|^```(sh|console|toml|python)\n(.*?)^```", re.DOTALL | re.MULTILINE
)


def follow(sections: range, folder: Path, variables: dict[str, str]) -> str:
    """Do what `sections` of the page say, in `folder`; returns what the commands have written.

    A block of `python` is written to the file that was named last; one of `toml` must be what that file holds.
    """
    told, section, named = "", 0, Path()
    for match in _PART.finditer(PAGE.read_text(encoding="utf-8")):
        number, name, kind, block = match.groups()
        section, named = int(number or section), folder / name if name else named
        if not kind or section not in sections or block == _STACK:
            continue
        if kind == "toml":
            assert named.read_text(encoding="utf-8") == block
        elif kind == "python":
            named.write_text(block, encoding="utf-8")
        elif kind == "sh":
            told += _run(block, folder, variables)
        else:
            for command, output in _calls(block):
                assert _run(command, folder, variables) == output
    return told


def _calls(block: str) -> Iterator[tuple[str, str]]:
    for call in block.removeprefix("$ ").split("\n$ "):
        command, _, output = call.partition("\n")
        yield command, output


def _run(script: str, folder: Path, variables: dict[str, str]) -> str:
    environment = os.environ | {"PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"} | variables
    done = subprocess.run(
        ["bash", "-euc", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout
