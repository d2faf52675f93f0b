"""Build the start of a job: its command, its environment, its log."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel

from tocsin.declare.blocks.spark_settings import LOCAL
from tocsin.declare.model.job_kinds import KINDS
from tocsin.declare.model.names import JobName
from tocsin.declare.setting_blocks import SERVER
from tocsin.declare.settings import Settings
from tocsin.declare.sinks import SINKS
from tocsin.setup.paths import Paths, here
from tocsin.supervise.runners.process_labels import Labels
from tocsin.supervise.runners.runner import Launch

# What a job inherits. Nothing else: an Airflow task, a Python path or a Spark of the user must not reach it.
# JDK_JAVA_OPTIONS is Java's own way to give an option to every JVM.
_INHERITED = (
    *("PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("TOCSIN_HOME", "JDK_JAVA_OPTIONS"),
)
_INHERITED_ON_CLUSTERS = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "KUBECONFIG")  # they say where YARN and Kubernetes are
# The role of a machine or container, as Amazon's clients find it; the keys themselves are in files.
_INHERITED_FOR_STORES = (
    *("AWS_ROLE_ARN", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_SESSION_NAME", "AWS_PROFILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)

# Stands for a catalogue that a job does not use: that there is a server decides which settings fit together.
_SOME_SERVER = f"{SERVER}://"


def job_launch(
    settings: Settings, labels: Labels, java_home: Path, *, beside: bool = False, memory_bytes: int | None = None
) -> Launch:
    """Build the start of a job, with `beside` to take over from the leading one; raises ConfigError without PySpark."""
    paths = here()
    return Launch(
        labels=labels,
        command=(*_command(paths, labels.job), *(("--beside",) if beside else ()), *labels.arguments()),
        environment=job_environment(_for_job(settings, labels.job), java_home),
        directory=paths.root,
        log=settings.log(labels.job),
        memory_bytes=memory_bytes,
    )


def job_environment(settings: Settings, java_home: Path) -> dict[str, str]:
    """The environment of a job: what it needs of ours, and exactly these settings, whatever files come to say later."""
    paths = here()
    inherited = (
        *_INHERITED,
        *(_INHERITED_ON_CLUSTERS if settings.spark.master != LOCAL else ()),
        *(_INHERITED_FOR_STORES if settings.storage.is_remote or settings.storage.has_remote_history else ()),
    )
    python = str(paths.venv / "bin" / "python")
    return {
        **{name: os.environ[name] for name in inherited if name in os.environ},
        "JAVA_HOME": str(java_home),
        "SPARK_HOME": str(paths.package("pyspark")),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        "PYTHONUNBUFFERED": "1",
        "TZ": "UTC",
        **setting_variables(settings),
    }


def _command(paths: Paths, job: str) -> tuple[str, ...]:
    name = JobName.parse(job)
    return (str(paths.venv / "bin" / "python"), "-m", "tocsin.job", name.kind, *([name.name] if name.name else []))


def _for_job(settings: Settings, job: str) -> Settings:
    """Remove from `settings` the logins on Kafka of other jobs, and the addresses that `job` does not use."""
    kind = JobName.parse(job).kind
    unused: dict[str, dict[str, object]] = {
        "alerts": {"database": None, "database_file": None},
        "history": {"catalog": _SOME_SERVER if settings.history.has_server else None},
        "views": dict.fromkeys(SINKS),
    }
    changes = {
        block: getattr(settings, block).model_copy(update=values)
        for block, values in unused.items()
        if block not in KINDS[kind].settings
    }
    return settings.model_copy(update={"kafka": settings.kafka.for_role(kind), **changes})


def setting_variables(settings: Settings) -> dict[str, str]:
    """Write `settings` as the variables from which `load_settings` makes them again."""
    variables = {"TOCSIN_PROJECT": str(settings.project.resolve()), "TOCSIN_STATE": str(settings.state.resolve())}
    for name in type(settings).model_fields.keys() - {"project", "state"}:
        value = getattr(settings, name)
        variables[f"TOCSIN_{name.upper()}"] = value if isinstance(value, str) else json.dumps(value, default=_text)
    return variables


def _text(value: object) -> object:
    """Values that JSON does not know, as the settings take them."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    if isinstance(value, timedelta):
        return f"{value.total_seconds()} seconds"
    return str(value)
