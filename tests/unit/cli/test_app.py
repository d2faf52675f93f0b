import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from typer import main

from tocsin.cli import app
from tocsin.cli.output import as_json
from tocsin.declare.model.errors import ConfigError, Fault, TransientError

_COMMAND: Any = main.get_command(app.app)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], int]:
    """Runs the command with something below that raises; gives the exit code."""

    def run(error: Exception) -> int:
        def verb(**options: object) -> None:
            raise error

        monkeypatch.setattr(app, "app", verb)
        with pytest.raises(SystemExit) as left:
            app.main()
        assert isinstance(left.value.code, int)
        return left.value.code

    return run


def _verbs_with_json(command: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from _verbs_with_json(inner, *words, name)
    if any("--json" in one.opts for one in command.params):
        yield words, command


@pytest.mark.parametrize(
    ("words", "verb"), list(_verbs_with_json(_COMMAND)), ids=lambda one: "-".join(one) if isinstance(one, tuple) else ""
)
def test_standard_output_is_data_alone_whatever_is_logged(
    words: tuple[str, ...], verb: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def log_and_write(**_: object) -> None:
        structlog.get_logger().warning("table version made", rows=3)
        as_json([])

    monkeypatch.setattr(verb, "callback", log_and_write)
    for parameter in verb.params:
        monkeypatch.setattr(parameter, "required", False)
    _COMMAND([*words, "--json"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert json.loads(out) == []
    assert "table version made" in err


def test_what_must_be_fixed_is_told_at_once_and_leaves_with_2(
    failing: Callable[[Exception], int], capsys: pytest.CaptureFixture[str]
) -> None:
    faults = [Fault("a.toml", "is not a key", key="frmat", nearest="format"), Fault("b.py", "is missing", key="owner")]
    assert failing(ConfigError(faults)) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.splitlines() == [
        "a.toml: frmat: is not a key; did you mean 'format'?",
        "b.py: owner: is missing",
        "2 faults; fix them and run this again",
    ]


def test_what_may_pass_leaves_with_1_and_without_a_traceback(
    failing: Callable[[Exception], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(TransientError("Kafka is away\x1b[2J")) == 1
    assert capsys.readouterr().err == "Kafka is away\\x1b[2J\n"


def test_a_fault_of_ours_says_so_and_how_to_see_more(
    failing: Callable[[Exception], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert failing(KeyError("user_id")) == 1
    assert capsys.readouterr().err.splitlines() == [
        "unexpected KeyError: 'user_id'",
        "this is a bug in Tocsin; TOCSIN_DEBUG=1 shows the traceback",
    ]


def test_debugging_shows_the_traceback(failing: Callable[[Exception], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOCSIN_DEBUG", "1")
    with pytest.raises(TransientError):
        failing(TransientError("x"))


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the command with words and environment; gives the exit code."""

    def run(*words: str, **environment: str) -> int:
        monkeypatch.setattr(sys, "argv", ["tocsin", *words])
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit) as left:
            app.main()
        assert isinstance(left.value.code, int)
        return left.value.code

    return run


def test_help_loads_nothing_heavy() -> None:
    """Each of these takes a tenth of a second or more; all together --help would take seconds."""
    heavy = ("pyspark", "pydantic", "sqlalchemy", "alembic", "confluent_kafka", "PIL", "jinja2", "structlog")
    program = f"import sys, tocsin.cli.app, tocsin.lab; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_verb_is_in_the_help_and_has_one_line_there(
    call: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("--help", COLUMNS="200", NO_COLOR="1") == 0
    verbs = dict(re.findall(r"^│ (\w+) +(\S.*?) *│$", capsys.readouterr().out, re.MULTILINE))
    expected = {"demo", "dev", "send", "status", "findings", "alerts", "quarantine", "explain", "check", "doctor"}
    assert verbs.keys() >= expected
    assert all(verbs.values())


def test_a_usage_error_leaves_with_2(call: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> None:
    assert call("findings", "--detectr", "x") == 2
    assert "--detector" in capsys.readouterr().err
    assert call("findings", "--since", "soon") == 2


def test_a_folder_that_is_no_project_is_told(
    call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("check", TOCSIN_PROJECT=str(tmp_path)) == 2
    told = capsys.readouterr().err
    assert "holds neither sources/ nor detectors/" in told
    assert "Traceback" not in told


def test_output_that_nobody_reads_any_more_is_no_fault() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "tocsin.cli", "detectors", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(writer)
    assert "Traceback" not in done.stderr
    assert "bug in Tocsin" not in done.stderr


def test_an_error_that_is_logged_is_one_line_unless_a_traceback_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def logged() -> str:
        with contextlib.redirect_stderr(io.StringIO()) as written:
            structlog.reset_defaults()
            app._root()
            try:
                raise ValueError("a <file> is broken")
            except ValueError:
                structlog.get_logger().exception("seal failed", day="2026-01-31")
        return written.getvalue()

    monkeypatch.delenv("TOCSIN_DEBUG", raising=False)
    (line,) = logged().splitlines()
    assert "seal failed" in line
    assert "a <file> is broken" in line
    monkeypatch.setenv("TOCSIN_DEBUG", "1")
    assert "Traceback" in logged()
