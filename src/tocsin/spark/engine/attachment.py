"""Attach to an engine: work in a JVM that several jobs share, in a session of one's own.

An engine (`tocsin.spark.engine.engine_job`) listens on a socket in the state folder, `engines/<name>.<pid>.sock`. Both
sides write lines of JSON: the engine greets, the job says who it is and gets the port and the secret of a Py4J server
of its own. The connection is the job's sign of life: when it ends, the engine stops what runs in the job's session.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tocsin.declare.blocks.spark_settings import SHARED
from tocsin.declare.model.errors import TransientError
from tocsin.declare.settings import Settings
from tocsin.platform.fork_server import short_path
from tocsin.platform.lock import LockHeld
from tocsin.spark.engine import jvm
from tocsin.spark.engine.costs import Cost, read_cost
from tocsin.spark.engine.deaths import FOLDER
from tocsin.spark.session import prepare_python

SESSION, LOG = "TOCSIN_SESSION", "TOCSIN_LOG"
"""Variables of Python workers: whose they are, and where what they write to standard error belongs."""
SESSION_LOCK = "session.lock"
"""The file in a checkpoint that an engine locks as long as a session of it writes there."""
_OUT_OF_HEAP = "java.lang.OutOfMemoryError", "Java heap space"
"""Words in the error of a query that found no room in the heap; the second when its planning did not."""
_ANSWER_SECONDS = 30.0
_LOSS_SECONDS = 2.0


def sockets(settings: Settings, pool: str) -> list[Path]:
    """List the sockets of the engines of `pool`, oldest first; some may be of engines that have ended."""
    return sorted((settings.state / FOLDER).glob(f"{pool}-*.sock"), key=_made_at)


def engine_code(settings: Settings) -> str:
    """Hash what an engine and its jobs must have in common: the code of this room, settings, and Spark.

    Of the settings only those that replace both: a job that goes on with older ones would find no engine any more.
    """
    shared = settings.spark.model_dump(include=SHARED), settings.storage.model_dump(exclude={"history"})
    return hashed_code(Path(__file__).parents[1], pyspark.__version__, shared)


def hashed_code(root: Path, *more: object) -> str:
    """Hash the modules below `root`, and `more`."""
    digest = hashlib.sha256(str(more).encode())
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _made_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # it has been removed
        return 0.0


class Line:
    """One end of a connection that carries lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._file = connection.makefile("rw", encoding="utf-8")

    def send(self, **message: Any) -> None:
        """Send a message. Raises an OSError when the other end is gone."""
        self._file.write(json.dumps(message) + "\n")
        self._file.flush()

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next message; None at the end. Raises an OSError or a ValueError if there is no other."""
        line = self._file.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self._file.close()
        self.connection.close()


class Attachment:
    """What this process has of an engine, until it closes it or ends.

    Attributes:
        engine: its job, such as `engine:live-1`.
        session: of this process alone.
        cost: reads what it has taken of the engine.
    """

    def __init__(self, line: Line, engine: str, session: SparkSession, cost: Callable[[], Cost]) -> None:
        self.engine, self.session, self.cost, self._line = engine, session, cost, line

    def claim(self, folder: Path) -> None:
        """Let the engine write the checkpoint in `folder` for this process alone, until it has ended it.

        Raises LockHeld as long as what another process ran there has not ended, in this engine or another, and a
        TransientError when the engine has ended.
        """
        try:
            self._line.send(claim=str(folder))
            answer = self._line.receive()
        except OSError:
            answer = None
        if answer is None:
            raise TransientError(f"{self.engine} has ended")
        if answer.get("held"):
            raise LockHeld(folder, None)

    def note_start(self, run: str) -> None:
        """Tell the engine of the id of a run of a query: it waits for the tasks of that run when this process ends."""
        self._tell(run=run)

    def note_failure(self, error: str) -> None:
        """Tell the engine if the query has failed with `error` because it found no room in the heap."""
        if any(words in error for words in _OUT_OF_HEAP):
            self._tell(failed=_OUT_OF_HEAP[0])

    def _tell(self, **message: str) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._line.send(**message)

    def is_lost(self, seconds: float = _LOSS_SECONDS) -> bool:
        """Return whether the engine has ended; it is given a moment to, for whoever asks has mostly seen an error."""
        ready, _, _ = select.select([self._line.connection], [], [], seconds)
        if not ready:
            return False
        try:
            return not self._line.connection.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    def close(self) -> None:
        """Leave the engine, which stops what still runs in the session. PySpark may then start a JVM of its own."""
        _leave(self._line)


def attach(settings: Settings, job: str, pool: str, version: str) -> Attachment:
    """Attach `job` to the engine of `pool` with the fewest jobs.

    Raises a TransientError, where a retry helps, while there is none that runs the code and the settings of this job.
    """
    code, found, others = engine_code(settings), dict[str, tuple[int, str, Line]](), 0
    for path in sockets(settings, pool):
        line = _connect(path)
        greeting = None if line is None else _greeting(line)
        if line is None:
            continue
        if greeting is None or (greeting["instance"], greeting["code"]) != (settings.installation_id, code):
            others += greeting is not None
            line.close()
        else:
            engine = str(greeting["engine"])
            if engine in found:  # an older process, which hands over
                found[engine][2].close()
            found[engine] = int(greeting["jobs"]), engine, line
    if not found:
        which = f"of {others} running here none has the code and settings of this job" if others else "none runs here"
        raise TransientError(f"waits for an engine of pool {pool}: {which}")
    (_, engine, line), *rest = sorted(found.values(), key=lambda each: each[:2])
    for *_, other in rest:
        other.close()
    try:
        line.send(job=job, version=version)
        answer = line.receive()
    except (OSError, ValueError) as error:
        raise TransientError(f"{engine} does not answer: {error}") from error
    if answer is None:
        raise TransientError(f"{engine} has ended")
    line.connection.settimeout(None)
    session, key = _enter(engine, line, answer), str(answer["session"])
    # The engine's JVM keeps Python workers apart by their environment: these are of this process alone.
    session.sparkContext.environment |= {SESSION: key, LOG: str(settings.log(job))}
    return Attachment(line, engine, session, functools.partial(read_cost, Path(answer["costs"]), key))


def _leave(line: Line) -> None:
    """End the connection, and let PySpark forget the JVM behind it."""
    jvm.expect_loss()
    line.close()
    SparkSession._instantiatedSession = SparkSession._activeSession = None
    SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None


def _connect(path: Path) -> Line | None:
    """Connect to an engine; None if it has ended."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_ANSWER_SECONDS)
    try:
        with short_path(path) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        return None
    return Line(connection)


def _greeting(line: Line) -> dict[str, Any] | None:
    try:
        return line.receive()
    except (OSError, ValueError):
        return None


def _enter(engine: str, line: Line, answer: dict[str, Any]) -> SparkSession:
    """Do what `_session` does; TransientError if the engine has ended meanwhile."""
    try:
        return _session(answer)
    except (Py4JError, OSError) as error:
        _leave(line)
        raise TransientError(f"{engine} has ended: {error}") from error


def _session(answer: dict[str, Any]) -> SparkSession:
    """Enter the engine's JVM by the Py4J server of this job, and take the session that the engine has made for it."""
    prepare_python()
    ours = {"PYSPARK_GATEWAY_PORT": str(answer["port"]), "PYSPARK_GATEWAY_SECRET": str(answer["secret"])}
    before = {name: os.environ.pop(name, None) for name in ours}
    os.environ |= ours
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:  # it leads to the JVM of the spark-submit that has started this process
                os.environ[name] = value
    reached: Any = gateway.jvm
    SparkContext._gateway, SparkContext._jvm = gateway, reached
    java = reached.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        reached.org.apache.spark.SparkContext.getOrCreate()
    )
    interrupt = signal.getsignal(signal.SIGINT)
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # PySpark's own handler cancels what runs in the JVM, of all processes
    SparkSession(context)  # the first is PySpark's default, and would become that of the JVM
    return SparkSession(context, reached.java.lang.System.getProperties().get(answer["session"]))
