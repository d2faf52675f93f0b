"""Where views are measured: the rig with a Redis beside it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from bench.processes import Program, await_that
from bench.rig import Rig, Site
from bench.systems import streams_program
from tocsin.declare.blocks.web_settings import WebSettings
from tocsin.declare.catalog import read_catalog
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.setting_blocks import ViewSettings
from tocsin.dev.servers.ports import free_ports
from tocsin.dev.servers.sink_servers import KINDS
from tocsin.platform.kafka.topics import ensure_topics

VIEW = "failures"
_FILE = '''"""Counts failed logins of each user."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tocsin import view


@view(source="logins", key="user_id", window=None, sink="{sink}", owner="bench@example.com", stage="live")
def view(events: DataFrame) -> DataFrame:
    failures = events.where("action = 'login failed'")
    return failures.groupBy("user_id").agg(
        F.count("*").alias("count"), F.max(F.unix_micros("event_time")).alias("latest")
    )
'''


@dataclass(frozen=True)
class ViewRig:
    """The rig and a running Redis.

    Attributes:
        rig: the rest of it.
        address, password, port: of Redis.
        redis: its process.
    """

    rig: Rig
    address: str
    password: str
    port: int
    redis: Program

    def site(self, name: str, sink: str) -> Site:
        """A new site with the view `failures`, which is kept in `sink`."""
        site = self.rig.site(name, {})
        (port,) = free_ports(1)
        views = site.settings.project / "views"
        views.mkdir()
        (views / f"{VIEW}.py").write_text(_FILE.format(sink=sink), encoding="utf-8")
        more = {"views": ViewSettings(redis=self.address), "web": WebSettings(port=port)}
        site = replace(site, settings=site.settings.model_copy(update=more))
        ensure_topics(site.settings, read_catalog(site.settings.project))
        return site

    def streams(self, site: Site, name: str, what: str) -> Program:
        """Start the Kafka Streams peer, which is to `count` events, or to `copy` the rows of the view."""
        topic = site.names.events(site.source) if what == "count" else site.names.view(VIEW)
        words = (self.rig.servers, topic, f"{site.name}-{name}", site.folder / name)
        return streams_program(self.rig, site, "FailureView", *words, str(self.port), self.password, VIEW, what)


@contextmanager
def with_redis(rig: Rig) -> Iterator[ViewRig]:
    """`rig` with a Redis that runs until the end of the `with` block.

    Raises:
        ConfigError: no Redis is installed.
    """
    kind = KINDS["redis"]
    program = kind.find()
    if program is None:
        raise ConfigError.one("redis-server", f"is not installed; run: {kind.install}")
    (port,) = free_ports(1)
    shutil.rmtree(rig.folder / "redis", ignore_errors=True)  # rows of an earlier run
    server = kind.server(rig.folder / "redis", rig.folder / "redis.log", port, program)
    launch = server.launch("bench")
    with Program(launch.command, launch.log, launch.environment) as running:
        await_that(lambda: server.waiting_for() is None, 60, "Redis", running)
        password = server.address.partition("default:")[2].partition("@")[0]
        yield ViewRig(rig, server.address, password, port, running)
