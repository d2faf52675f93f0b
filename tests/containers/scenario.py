"""What each profile must do in containers. Each check returns what it has measured, in the words of the table."""

import contextlib
import json
import re
import shutil
import socket
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.containers import learned_project
from tests.containers.composed import Composed
from tests.rig.waiting import await_that
from tocsin.dev.servers.ports import LOOPBACK

_OURS, _USER = "tocsin", 10001
_KEEPERS = ("postgres", "s3", "spark-master", "spark-worker-1")
"""What holds state or tasks of jobs: a burst after each of their kills must be found."""
_WAIT_SECONDS = 240
_NEW = "guessed_passwords"
_UNITS = {"m": 2**20, "g": 2**30}
_CGROUPS = Path("/sys/fs/cgroup")

Check = Callable[[Composed, str], str]
"""Takes the containers and the service in which the jobs are."""


def starts(stack: Composed, jobs: str) -> str:
    """All services start in their order and become healthy"""
    begun = time.monotonic()
    stack.up()
    return f"{len(stack.services)} services, {time.monotonic() - begun:.0f} s"


def mails(stack: Composed, jobs: str) -> str:
    """A burst of failed logins ends in a mail"""
    return f"after {_burst(stack, jobs, 'mallory'):.0f} s"


def follows_files(stack: Composed, jobs: str) -> str:
    """A file put into the mounted `detectors/` becomes a job; removed, its job goes"""
    path = stack.project / "detectors" / f"{_NEW}.py"
    begun = time.monotonic()
    shutil.copy(path.with_name("failed_logins.py"), path)
    await_that(lambda: _state(stack, jobs, _NEW) == "running", _WAIT_SECONDS, lambda: _status(stack, jobs), every=1.0)
    ran = time.monotonic() - begun
    path.unlink()
    await_that(lambda: _state(stack, jobs, _NEW) is None, _WAIT_SECONDS, lambda: _status(stack, jobs), every=1.0)
    return f"runs after {ran:.0f} s"


def learns(stack: Composed, jobs: str) -> str:
    """Packages of a project are in the image: detectors pass their cases, one is trained on past days, and finds"""
    learned_project.declare(stack.project)
    stack.put(jobs, "/tmp/past.log", learned_project.past())
    name, begun = learned_project.NAME, time.monotonic()
    stack.execute(jobs, "tocsin", "test", name, learned_project.HERE, "--ways", "batch,restarted")
    stack.execute(jobs, "tocsin", "history", "import", "/tmp/past.log", "--source", "logins", "--seal")
    stack.execute(jobs, "tocsin", "model", "train", name)
    await_that(lambda: _state(stack, jobs, name) == "running", _WAIT_SECONDS, lambda: _status(stack, jobs), every=1.0)
    told = f"runs after {time.monotonic() - begun:.0f} s, mail after {_burst(stack, jobs, 'oscar'):.0f} s"
    found = ("tocsin", "alerts", "--detector", name)
    await_that(lambda: "oscar" in stack.execute(jobs, *found), _WAIT_SECONDS, lambda: _status(stack, jobs), every=1.0)
    learned_project.withdraw(stack.project)
    return told


def is_no_root(stack: Composed, jobs: str) -> str:
    """No process of our containers belongs to root; each to the image's user"""
    seen = 0
    for name in stack.lasting(_OURS):
        for pid in processes(stack, name):
            assert _owner(pid) == _USER, f"{name}: process {pid} belongs to {_owner(pid)}"
            seen += 1
    return f"{seen} processes"


def is_limited(stack: Composed, jobs: str) -> str:
    """The kernel holds each container to its memory and CPUs"""
    told = []
    for name in stack.lasting():
        limits = stack.services[name]["deploy"]["resources"]["limits"]
        cpus, memory = (re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(limits[key])) for key in ("cpus", "memory"))
        bound = int(memory[:-1]) * _UNITS[memory[-1]]
        pid = stack.state(name)["Pid"]
        found = int(_group(pid, "memory", "memory.limit_in_bytes", "memory.max"))
        assert found == bound, f"{name}: {found} bytes instead of {bound}"
        assert _cores(pid) == float(cpus), f"{name}: {_cores(pid)} CPUs instead of {cpus}"
        peak = int(_group(pid, "memory", "memory.max_usage_in_bytes", "memory.peak"))
        told.append(f"{name} {peak / 2**20:.0f} of {bound / 2**20:.0f} MB")
    return "most, with files in memory: " + ", ".join(told)


def listens_on_loopback(stack: Composed, jobs: str) -> str:
    """What is published answers on loopback, and nowhere else"""
    for name in stack.lasting():
        assert {*stack.published(name)} <= {LOOPBACK}, name
    port = stack.ports["KAFKA_PORT"]
    topics = AdminClient({"bootstrap.servers": f"{LOOPBACK}:{port}"}).list_topics(timeout=30).topics
    assert "events.logins" in topics, sorted(topics)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect(("192.0.2.1", 9))  # sends nothing; tells which address of this machine leads outwards
        address = route.getsockname()[0]
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=5):
        raise AssertionError(f"{address}:{port} answers")
    return f"Kafka's {len(topics)} topics seen from the machine"


def survives_kills(stack: Composed, jobs: str) -> str:
    """Each container killed with -9 comes back and becomes healthy; then a burst ends in a mail"""
    told = []
    for name in (one for one in stack.lasting() if one not in stack.shared):
        begun = time.monotonic()
        stack.kill(name)
        for other in stack.lasting():
            stack.await_health(other, f"after {name} was killed")
        told.append(f"{name} {time.monotonic() - begun:.0f} s")
        if name in _KEEPERS:
            told[-1] += f" (mail after {_burst(stack, jobs, f'victim-of-{name}'):.0f} s)"
    return f"healthy again: {', '.join(told)}; mail after {_burst(stack, jobs, 'trudy'):.0f} s"


def stops(stack: Composed, jobs: str) -> str:
    """Each container stops by itself when asked, within its time"""
    told = []
    for name in reversed(stack.lasting()):
        begun = time.monotonic()
        code = stack.stop(name)
        assert code in {0, 130, 143}, f"{name} ended with {code}\n{stack.log(name)}"
        told.append(f"{name} {time.monotonic() - begun:.0f} s")
    return ", ".join(told)


CHECKS: tuple[Check, ...] = (
    *(starts, mails, follows_files, is_no_root, is_limited, listens_on_loopback, survives_kills, stops),
)


def _burst(stack: Composed, jobs: str, user: str) -> float:
    """Send a burst beside steady logins; returns the seconds from its sending to its mail.

    It is urgent: mails about others wait for each other.
    """
    url = f"http://{LOOPBACK}:{stack.ports['MAIL_PORT']}/mails.json"

    def arrived() -> bool:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return any(user in mail["subject"] for mail in json.load(answer))

    begun = time.monotonic()
    stack.execute(jobs, "tocsin", "send", "--rate", "20", "--burst", f"user={user},n=120", "--duration", "30s")
    await_that(arrived, _WAIT_SECONDS, lambda: _status(stack, jobs), every=0.5)
    return time.monotonic() - begun


def _status(stack: Composed, jobs: str) -> str:
    return stack.execute(jobs, "sh", "-c", "tocsin status --json || true")


def _state(stack: Composed, jobs: str, name: str) -> str | None:
    """The state of a detector's job; None if there is no such job."""
    found = json.loads(_status(stack, jobs))
    return next((one["state"] for one in found if one["job"] == f"detector:{name}"), None)


def processes(stack: Composed, service: str) -> list[int]:
    """All processes in the memory group of a container, by their ids on this machine."""
    return [int(pid) for pid in _group(stack.state(service)["Pid"], "memory", "cgroup.procs", "cgroup.procs").split()]


def _owner(pid: int) -> int:
    """The user of a process; that of the image if it has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}").stat().st_uid
    except FileNotFoundError:
        return _USER


def _cores(pid: int) -> float:
    both = _CGROUPS / "cgroup.controllers"
    if both.exists():
        quota, period = _group(pid, "cpu", "", "cpu.max").split()
    else:
        quota, period = (_group(pid, "cpu", f"cpu.cfs_{one}_us", "") for one in ("quota", "period"))
    return int(quota) / int(period)


def _group(pid: int, controller: str, first: str, second: str) -> str:
    """A file of the control group of a process: `first` in version 1, `second` in version 2."""
    lines = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
    if (_CGROUPS / "cgroup.controllers").exists():
        return (_CGROUPS / lines[-1][2].lstrip("/") / second).read_text().strip()
    path = next(path for _, names, path in lines if controller in names.split(","))
    return (_CGROUPS / controller / path.lstrip("/") / first).read_text().strip()
