"""Diagnose this machine, what set-up made, and what the settings point to, for `tocsin doctor`.

Each function looks at one thing, within seconds, changes nothing, and never raises for what it finds.
"""

from __future__ import annotations

import shutil
import smtplib
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from pydantic import BaseModel

from tocsin.alerts.store.database import Database
from tocsin.declare.catalog import Catalog, read_catalog
from tocsin.declare.model.durations import span
from tocsin.declare.model.errors import ConfigError, TocsinError
from tocsin.declare.settings import RUNNING_FILE, Settings, load_settings
from tocsin.dev.servers.ports import accepts, owner_of
from tocsin.dev.servers.sink_servers import KINDS, needed_kinds
from tocsin.platform.heartbeat import seconds_since_look
from tocsin.platform.kafka.topics import wanted_topics
from tocsin.setup import jars
from tocsin.setup.java import find_java
from tocsin.setup.paths import Paths, here
from tocsin.supervise.job_status import Severity, unsupervised_reason

_GIB = 1024**3
_SECONDS = 3.0
_UP = "start it with `tocsin dev up`, or set its address in tocsin.toml or TOCSIN_* variables"
_SUPERVISE = "start what supervises: `tocsin dev up`, the service, the container, or Airflow's DAG `supervisor`"


class Diagnosis(BaseModel, frozen=True):
    """One thing that `tocsin doctor` looked at.

    Attributes:
        standing: ok, warning (works, or is not needed now) or problem.
    """

    name: str
    standing: Severity
    what: str
    advice: str = ""


def diagnose() -> Iterator[Diagnosis]:
    """Look at all that there is to look at; what depends on settings that cannot be read is left out."""
    yield python()
    yield java()
    yield archives(here())
    yield memory()
    try:
        settings = load_settings()
    except ConfigError as error:
        yield _problem("settings", str(error), "correct the file or variable")
        return
    catalog = read_catalog(settings.project)
    yield disk(settings.state)
    yield declarations(catalog)
    yield from sink_servers(settings, catalog)
    yield from ports(settings)
    yield kafka(settings, set(wanted_topics(settings, catalog)))
    yield smtp(settings)
    yield alerts_database(settings)
    yield supervisor(settings)


def python() -> Diagnosis:
    """Check that this Python is the one that set-up made."""
    version = ".".join(map(str, sys.version_info[:3]))
    venv = here().venv
    if Path(sys.prefix).resolve() == venv.resolve():
        return _ok("Python", f"{version} in {venv}")
    return Diagnosis(
        name="Python",
        standing=Severity.WARNING,
        what=f"{version} in {sys.prefix}, not the environment that set-up makes",
        advice=f"run {venv / 'bin' / 'tocsin'}",
    )


def java() -> Diagnosis:
    """Check that there is a Java that Spark and Kafka run on."""
    try:
        found = find_java()
    except ConfigError as error:
        *looked_at, advice = error.faults
        return _problem("Java", "; ".join(f"{fault.where} {fault.what}" for fault in looked_at), advice.what)
    return _ok("Java", f"{found.version} from {found.origin} ({found.runtime})")


def archives(paths: Paths) -> Diagnosis:
    """Check that every locked Java archive of Spark and the broker is there."""
    try:
        locked = jars.read_lock(paths.locks / jars.LOCK)
    except ConfigError as error:
        return _problem("Java archives", str(error), "restore the file: git checkout locks")
    wanted = [(name, jar) for name in ("spark", "broker") for jar in locked[name]]
    missing = [str(jar) for name, jar in wanted if not (paths.jars(name) / jar.file).is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return _problem("Java archives", f"missing: {', '.join(missing[:3])}{more}", "make setup")
    return _ok("Java archives", f"all {len(wanted)} locked archives are present")


def disk(state: Path) -> Diagnosis:
    """Check that the disk of the state folder has room: 1 GiB is needed, 5 GiB are comfortable."""
    folder = next(path for path in (state, *state.parents) if path.exists())
    free = shutil.disk_usage(folder).free / _GIB
    what = f"{free:.1f} GiB free for {state}"
    if free < 1:
        return _problem("disk", what, "make room, or move the state folder with TOCSIN_STATE")
    if free < 5:
        advice = "Kafka keeps seven days of events; make room before that"
        return Diagnosis(name="disk", standing=Severity.WARNING, what=what, advice=advice)
    return _ok("disk", what)


def memory() -> Diagnosis:
    """Check that another Spark job (about 0.7 GiB) fits."""
    free = psutil.virtual_memory().available / _GIB
    what = f"{free:.1f} GiB available"
    if free < 1:
        return _problem("memory", what, "a Spark job takes about 0.7 GiB, the broker half of that; stop something")
    return _ok("memory", what)


def declarations(catalog: Catalog) -> Diagnosis:
    """Check that all files of sources/ and detectors/ can be read."""
    if catalog.broken:
        what = f"{len(catalog.broken)} broken: {', '.join(sorted(catalog.broken))}"
        return _problem("declarations", what, "tocsin check")
    return _ok("declarations", f"{len(catalog.sources)} sources, {len(catalog.detectors)} detectors")


def sink_servers(settings: Settings, catalog: Catalog) -> Iterator[Diagnosis]:
    """Check that the servers are installed that an embedded stack would start for the views of `catalog`."""
    for kind in needed_kinds(settings, catalog):
        server = KINDS[kind]
        program = server.find()
        if program is not None:
            yield _ok(server.title, f"{program}, which `tocsin dev up` starts for views")
        else:
            what = "not installed, and a view names it; its rows are kept in SQLite alone"
            advice = f"{server.install}; or set views.{kind} in tocsin.toml"
            yield Diagnosis(name=server.title, standing=Severity.WARNING, what=what, advice=advice)


def kafka(settings: Settings, wanted: set[str]) -> Diagnosis:
    """Check that Kafka answers and has the topics `wanted`."""
    where = settings.kafka.bootstrap_servers
    client = AdminClient(settings.kafka.for_librdkafka() | {"socket.timeout.ms": 3000})
    try:
        topics = set(client.list_topics(timeout=_SECONDS).topics)
    except KafkaException as error:
        return _absent(settings, "Kafka", f"{where} does not answer: {error.args[0].str()}")
    missing = sorted(wanted - topics)
    if missing:
        return _problem("Kafka", f"{where} answers, but lacks {', '.join(missing)}", "tocsin topics")
    return _ok("Kafka", f"{where} answers, with all {len(wanted)} topics")


def smtp(settings: Settings) -> Diagnosis:
    """Check that the mail server answers. Does not log in and sends nothing."""
    smtp = settings.smtp
    where = f"{smtp.host}:{smtp.port}"
    client = smtplib.SMTP_SSL if smtp.tls == "implicit" else smtplib.SMTP
    try:
        with client(smtp.host, smtp.port, timeout=_SECONDS) as server:
            server.noop()
    except (OSError, smtplib.SMTPException) as error:
        return _absent(settings, "mail server", f"{where} does not answer: {error}")
    return _ok("mail server", f"{where} answers")


def alerts_database(settings: Settings) -> Diagnosis:
    """Check that the alerts DB can be read and has the schema of this version."""
    database = Database(settings.alerts_database, read_only=True)
    try:
        ready = database.is_ready()
    except TocsinError as error:
        return _problem(
            "alerts DB", str(error), "see the message; until it works the indexer waits, and nothing is lost"
        )
    finally:
        database.close()
    if not ready:
        what, advice = f"{database.shown} does not exist yet", "the indexer creates or migrates it when it starts"
        return Diagnosis(name="alerts DB", standing=Severity.WARNING, what=what, advice=advice)
    return _ok("alerts DB", f"{database.shown} has the schema of this version")


def supervisor(settings: Settings) -> Diagnosis:
    """Check that the supervisor has looked at the jobs within two minutes."""
    looked_seconds = seconds_since_look(settings.state)
    if looked_seconds is None:
        what = "has never looked at the jobs"
        return Diagnosis(name="supervisor", standing=Severity.WARNING, what=what, advice=_SUPERVISE)
    unsupervised = unsupervised_reason(looked_seconds)
    if unsupervised is not None:
        return _absent(settings, "supervisor", unsupervised, _SUPERVISE)
    return _ok("supervisor", f"looked at the jobs {span(looked_seconds)} ago")


def ports(settings: Settings) -> list[Diagnosis]:
    """Check that the ports that an embedded stack would take are free, if it is not up."""
    if (settings.state / RUNNING_FILE).exists():
        return []
    server = settings.kafka.bootstrap_servers.split(",")[0]
    wanted = {"Kafka's port": int(server.rsplit(":", 1)[1]), "mail server's port": settings.smtp.port}
    taken = {name: port for name, port in wanted.items() if accepts(port)}
    advice = "fine if you mean to use that server; else choose another port for `tocsin dev up`"
    return [
        Diagnosis(name=name, standing=Severity.WARNING, what=f"{port} is in use by {owner_of(port)}", advice=advice)
        if name in taken
        else _ok(name, f"{port} is free")
        for name, port in wanted.items()
    ]


def _absent(settings: Settings, name: str, what: str, advice: str = _UP) -> Diagnosis:
    if _embedded(settings) and not (settings.state / RUNNING_FILE).exists():
        return Diagnosis(name=name, standing=Severity.WARNING, what=what, advice=advice)
    return _problem(name, what, f"look into its log; {advice}")


def _embedded(settings: Settings) -> bool:
    hosts = {server.rsplit(":", 1)[0] for server in settings.kafka.bootstrap_servers.split(",")}
    return hosts <= {"127.0.0.1", "localhost"}


def _ok(name: str, what: str) -> Diagnosis:
    return Diagnosis(name=name, standing=Severity.OK, what=what)


def _problem(name: str, what: str, advice: str) -> Diagnosis:
    return Diagnosis(name=name, standing=Severity.PROBLEM, what=what, advice=advice)
