"""What is special in the profile `cluster`: who does the work, and where state is."""

import json
from pathlib import Path

from tests.containers.composed import Composed
from tests.containers.scenario import processes
from tests.rig.waiting import await_that

_DETECTOR, _WORKERS = "detector:failed_logins", ("spark-worker-1", "spark-worker-2")
_SEAL_SECONDS, _BATCH_SECONDS = 240, 400
_READ = "from urllib.request import urlopen; print(urlopen('http://127.0.0.1:8080/json/').read().decode())"


def works_on_executors(stack: Composed, jobs: str) -> str:
    """Executors on both workers run the detector's tasks"""
    master = json.loads(stack.execute("spark-master", "python", "-c", _READ))
    (application,) = [one for one in master["activeapps"] if one["name"] == _DETECTOR]
    tasks = {name: sum(_tasks(pid) for pid in processes(stack, name)) for name in _WORKERS}
    assert all(tasks.values()), f"{tasks}\n{master}"
    told = ", ".join(f"{count} threads of tasks on {name}" for name, count in tasks.items())
    return f"{application['cores']} cores granted; {told}"


def keeps_state_apart(stack: Composed, jobs: str) -> str:
    """Checkpoints and history are in the bucket; the state folder has no checkpoint"""
    await_that(lambda: _seals(stack, jobs), _SEAL_SECONDS, every=1.0)
    await_that(lambda: _has_committed(stack), _BATCH_SECONDS, every=5.0)
    checkpoints, history = _objects(stack, "checkpoints"), _objects(stack, "history")
    assert history
    local = stack.execute(jobs, "find", "/var/lib/tocsin/checkpoints", "-path", "*/commits/*").split()
    assert local == [], local
    return f"{len(checkpoints)} objects of checkpoints, {len(history)} of history"


def _has_committed(stack: Composed) -> bool:
    return any("/commits/" in path and "failed_logins" in path for path in _objects(stack, "checkpoints"))


def _seals(stack: Composed, jobs: str) -> bool:
    """Seal by hand; false while the night does so, which is made up for at the start."""
    try:
        stack.execute(jobs, "tocsin", "history", "seal", "--source", "logins")
    except AssertionError as error:
        if "is held by" not in str(error):
            raise
        return False
    return True


def _objects(stack: Composed, what: str) -> list[str]:
    """The files of the S3 server for the objects of checkpoints or history."""
    folder = f"/var/lib/s3/tocsin/containers/{what}/"
    return [path for path in stack.execute("s3", "find", "/var/lib/s3", "-type", "f").split() if folder in path]


def _tasks(pid: int) -> int:
    """Count the threads of a process in which an executor runs tasks; Linux cuts their names."""
    names = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    return sum(name.startswith("Executor task l") for name in names)
