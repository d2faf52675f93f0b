import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.rig.waiting import await_that
from tests.unit.supervise.dummies import OBEDIENT, SLEEP, STUBBORN, WITH_CHILD, WITH_GRANDCHILD, launch
from tocsin.supervise.runners.local import LocalRunner
from tocsin.supervise.runners.runner import Labels

JOB = "detector:failed_logins"
Start = Callable[[str], int]


@pytest.fixture
def instance() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def runner(tmp_path: Path, instance: str) -> Iterator[LocalRunner]:
    one = LocalRunner(instance, lambda job: tmp_path / "logs" / f"{job.replace(':', '__')}.log")
    yield one
    for process in one.list():
        one.stop(process, force=True)
    await_that(lambda: not one.list())


@pytest.fixture
def start(tmp_path: Path, instance: str, runner: LocalRunner) -> Start:
    """Start a dummy of some code as the job; returns its pid."""
    return lambda code: runner.start(launch(tmp_path, Labels(instance, JOB, "abc"), code))


def test_a_process_is_found_by_its_labels_by_another_runner_too(
    tmp_path: Path, instance: str, runner: LocalRunner
) -> None:
    labels = Labels(instance, JOB, "abc")
    pid = runner.start(launch(tmp_path, labels, SLEEP))
    another = LocalRunner(instance, lambda _: tmp_path)
    await_that(another.list)
    (found,) = another.list()
    assert (found.pid, found.labels, found.leader) == (pid, labels, True)
    assert os.getsid(pid) == pid, "a session of its own"
    assert LocalRunner("another", lambda _: tmp_path).list() == [], "no other installation sees it"


def test_the_environment_is_what_was_given_and_nothing_of_the_caller(
    tmp_path: Path, instance: str, runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "x")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    code = "import os; print(sorted(os.environ)); print(os.environ['JAVA_HOME'])"
    runner.start(launch(tmp_path, Labels(instance, JOB, "abc"), code, JAVA_HOME="/java"))
    await_that(lambda: runner.exit_code(JOB) == 0)
    names, java = runner.logs(JOB, 2)
    assert "AIRFLOW" not in names
    assert "PYTHONPATH" not in names
    assert java == "/java"


def test_one_that_is_asked_stops_and_its_exit_code_is_known(start: Start, runner: LocalRunner) -> None:
    start(OBEDIENT + "#")
    (process,) = runner.list()
    await_that(lambda: _catches(process.pid, signal.SIGTERM))
    runner.stop(process)
    await_that(lambda: not runner.list())
    assert runner.exit_code(JOB) == 0


def test_an_end_is_waited_for_and_noticed_at_once(start: Start, runner: LocalRunner) -> None:
    assert not runner.shares_files(), "with nothing there nothing is known"
    pid = start(SLEEP)
    await_that(runner.list)
    assert not runner.wait_for_end(0.01)
    assert runner.shares_files()
    os.kill(pid, signal.SIGKILL)
    assert runner.wait_for_end(60)
    assert not runner.wait_for_end(0.01), "whoever lists nothing meanwhile does not hear of it for ever"
    assert runner.list() == []


def test_a_detached_one_is_nobodys_child(tmp_path: Path, instance: str, runner: LocalRunner) -> None:
    """Whoever ends the caller with all below it must not end the job."""
    detached = LocalRunner(instance, lambda _: tmp_path / "log", detached=True)
    assert detached.start(launch(tmp_path, Labels(instance, JOB, "abc"), SLEEP)) == 0
    await_that(runner.list)
    (found,) = runner.list()
    assert found.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    assert os.getsid(found.pid) == found.pid


def test_a_deaf_one_is_ended_by_force(start: Start, runner: LocalRunner) -> None:
    start(STUBBORN)
    await_that(lambda: runner.logs(JOB, 1) == ["deaf"])
    (process,) = runner.list()
    runner.stop(process)
    assert runner.list() == [process]
    runner.stop(process, force=True)
    await_that(lambda: not runner.list())
    assert runner.exit_code(JOB) == -signal.SIGKILL


def test_force_ends_all_below_it_also_a_grandchild_whose_parent_is_gone(start: Start, runner: LocalRunner) -> None:
    start(WITH_GRANDCHILD)
    await_that(lambda: runner.logs(JOB, 1))
    grandchild = int(runner.logs(JOB, 1)[0])
    (process,) = [one for one in runner.list() if one.leader]
    runner.stop(process, force=True)
    await_that(lambda: not _is_alive(grandchild))


def test_a_child_is_part_of_its_leader_and_listed_alone_once_that_is_gone(start: Start, runner: LocalRunner) -> None:
    pid = start(WITH_CHILD)
    await_that(lambda: runner.logs(JOB, 1))
    child = int(runner.logs(JOB, 1)[0].split()[1])
    assert [process.pid for process in runner.list()] == [pid]
    os.kill(pid, signal.SIGKILL)
    await_that(lambda: [(p.pid, p.leader) for p in runner.list()] == [(child, False)])


def test_another_process_with_the_same_number_is_not_touched(start: Start, runner: LocalRunner) -> None:
    start(SLEEP)
    await_that(runner.list)
    (process,) = runner.list()
    runner.stop(type(process)(process.labels, process.pid, process.started_at - 60), force=True)
    assert runner.list() == [process]


def test_labels_of_another_user_prove_nothing(
    tmp_path: Path, instance: str, start: Start, runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(SLEEP)
    another = os.getuid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: another)
        assert LocalRunner(instance, lambda _: tmp_path).list() == []
    await_that(lambda: len(runner.list()) == 1)


@pytest.mark.parametrize("force", [True, False])
def test_a_process_that_may_not_be_signalled_ends_nothing_else(
    start: Start, runner: LocalRunner, monkeypatch: pytest.MonkeyPatch, *, force: bool
) -> None:
    start(SLEEP)
    (process,) = runner.list()

    def denied(process: psutil.Process) -> None:
        raise psutil.AccessDenied(process.pid)

    def denied_group(_pid: int, _signal: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patch:
        patch.setattr(psutil.Process, "kill", denied)
        patch.setattr(psutil.Process, "terminate", denied)
        patch.setattr(os, "killpg", denied_group)
        runner.stop(process, force=force)
        assert runner.list() == [process]


def test_a_process_that_may_not_be_looked_at_hides_no_other(
    tmp_path: Path, instance: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(SLEEP)
    look = psutil.Process.cmdline

    def cmdline(process: psutil.Process) -> list[str]:
        if process.pid == os.getpid():
            raise psutil.AccessDenied(process.pid)
        return look(process)

    monkeypatch.setattr(psutil.Process, "cmdline", cmdline)
    await_that(lambda: len(LocalRunner(instance, lambda _: tmp_path).list()) == 1)


def test_only_what_may_be_ours_is_looked_at_again_and_again(
    start: Start, runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a look each second reads the command line and the environment of every process of the machine."""
    monkeypatch.setattr("tocsin.supervise.runners.local._SETTLED_SECONDS", 0.0)
    pid, looked_at = start(SLEEP), set()
    await_that(lambda: [process.pid for process in runner.list()] == [pid])
    look = psutil.Process.cmdline

    def cmdline(process: psutil.Process) -> list[str]:
        looked_at.add(process.pid)
        return look(process)

    monkeypatch.setattr(psutil.Process, "cmdline", cmdline)
    assert [process.pid for process in runner.list()] == [pid]
    assert not looked_at & {pid, os.getpid(), 1}


def test_a_process_that_becomes_ours_after_it_began_is_found(
    tmp_path: Path, instance: str, runner: LocalRunner
) -> None:
    """As one that replaces itself by its program."""
    command = list(launch(tmp_path, Labels(instance, JOB, "abc"), SLEEP).command)
    code = f"import os, sys; sys.stdin.readline(); os.execv({sys.executable!r}, {command!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as later:
        assert runner.list() == []
        assert later.stdin is not None
        later.stdin.write(b"\n")
        later.stdin.flush()
        await_that(lambda: [one.pid for one in runner.list()] == [later.pid])
        later.kill()


def test_a_process_stays_while_it_replaces_its_program_and_shows_no_labels(
    start: Start, runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = start(SLEEP)
    await_that(lambda: [process.pid for process in runner.list()] == [pid])
    with monkeypatch.context() as patched:
        patched.setattr(psutil.Process, "cmdline", lambda _: [])
        patched.setattr(psutil.Process, "environ", lambda _: {})
        assert [process.pid for process in runner.list()] == [pid]
    os.kill(pid, signal.SIGKILL)
    await_that(lambda: runner.list() == [])


def test_a_program_that_is_not_there_is_an_error(tmp_path: Path, instance: str, runner: LocalRunner) -> None:
    wanted = launch(tmp_path, Labels(instance, JOB, "abc"), SLEEP)
    with pytest.raises(FileNotFoundError):
        runner.start(type(wanted)(**{**vars(wanted), "command": ("/no/such/program",)}))


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_tethered_processes_end_with_a_starter_that_is_killed(
    tmp_path: Path, instance: str, runner: LocalRunner
) -> None:
    starter = textwrap.dedent(f"""
        import time
        from pathlib import Path
        from tests.unit.supervise.dummies import STUBBORN, launch
        from tocsin.supervise.runners.runner import Labels
        from tocsin.supervise.runners.local import LocalRunner
        runner = LocalRunner({instance!r}, lambda _: Path({str(tmp_path)!r}), tethered=True)
        runner.start(launch(Path({str(tmp_path)!r}), Labels({instance!r}, {JOB!r}, "abc"), STUBBORN))
        time.sleep(600)
    """)
    process = subprocess.Popen([sys.executable, "-c", starter])
    try:
        await_that(lambda: runner.logs(JOB, 1) == ["deaf"])
        assert len(runner.list()) == 1
        process.kill()
        await_that(lambda: not runner.list(), 2.0)
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux's")
def test_what_a_tethered_process_tethers_itself_ends_too(tmp_path: Path) -> None:
    """As the JVM does that a job starts to make an archive: it belongs to no pipe, and would live on by itself."""
    imports = "import subprocess, time; from tocsin.platform import child_process;"
    below = f"{imports} sleep = [{sys.executable!r}, '-c', {SLEEP!r}];"
    below += "print(subprocess.Popen([*child_process.prefix(), 'nice', *sleep]).pid, flush=True); time.sleep(600)"
    above = f"{imports} below = [{sys.executable!r}, '-c', {below!r}];"
    above += "subprocess.Popen([*child_process.prefix(), *below]); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", above], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lowest = psutil.Process(int(process.stdout.readline()))
    try:
        assert lowest.is_running()
        process.kill()
        await_that(lambda: not _is_alive(lowest.pid), 5.0)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        if lowest.is_running():
            lowest.kill()


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


def _catches(pid: int, signum: int) -> bool:
    """Whether the process has set its handler; before that SIGTERM ends it with another code."""
    if sys.platform != "linux":
        return True
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return bool(int(caught.split()[1], 16) >> (signum - 1) & 1)
