from __future__ import annotations

import sys

import pytest

from tocsin.declare.model.errors import ConfigError, TransientError
from tocsin.setup.process import run


def test_what_a_program_prints_is_returned() -> None:
    assert run([sys.executable, "-c", "print('Grüße')"], "greeting", env={"PYTHONIOENCODING": "utf-8"}) == "Grüße\n"


def test_a_failure_tells_what_failed_what_it_said_and_how_to_resume() -> None:
    script = "import sys; print('\\n' * 100); print('no route to host', file=sys.stderr); sys.exit(7)"
    with pytest.raises(TransientError) as error:
        run([sys.executable, "-c", script], "download of archives")
    lines = str(error.value).splitlines()
    assert lines[0] == "download of archives failed (exit code 7):"
    assert lines[-1] == "To resume: make setup"
    assert "no route to host" in lines
    assert len(lines) < 50


def test_a_full_disk_is_no_matter_of_trying_again() -> None:
    script = "import sys; sys.exit('error: failed to write `x`: No space left on device (os error 28)')"
    with pytest.raises(ConfigError, match=r"installation: the disk is full; set-up takes 3 GB.*; free some"):
        run([sys.executable, "-c", script], "installation")
