from __future__ import annotations

import sys

import pytest

from tocsin.model.errors import TransientError
from tocsin.provision.process import run


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
