"""What is measured: Tocsin's own jobs, and the peers that do (nearly) the same on the same broker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.processes import Program
from bench.rig import Rig, Site
from tocsin.declare.model.errors import ConfigError
from tocsin.declare.model.names import detector_job
from tocsin.setup.paths import here

_HERE = Path(__file__).parent
TOCSIN = "Tocsin"
AT_LEAST_ONCE = "Kafka Streams, at least once"
EXACTLY_ONCE = "Kafka Streams, exactly once"
QUIX = "Quix Streams"
FLOOR = "floor: one client passes on"
EVERYTHING = 1_000_000_000


@dataclass(frozen=True)
class System:
    """One contestant.

    Attributes:
        name: as the tables say it.
        start: begins to read the events topic of a site and to write its findings topic.
        detector: the name its outputs carry; empty for peers, which carry none.
    """

    name: str
    start: Callable[[Rig, Site], Program]
    detector: str = ""

    def is_ready(self, site: Site) -> bool:
        """Whether it reads; a peer cannot be asked, and what it missed is read a moment later."""
        return not self.detector or site.runs(detector_job(self.detector))


def tocsin(detector: str) -> System:
    """The job of one detector that the site's project declares."""
    return System(TOCSIN, lambda rig, site: rig.job(site, detector_job(detector)), detector)


def peers(lowest: int, highest: int) -> list[System]:
    """The peers, which emit every score above `lowest` up to `highest`, and beyond it each +10 %."""
    limits = (str(lowest), str(highest))

    def streams(rig: Rig, site: Site, guarantee: str) -> Program:
        topics = (site.names.events(site.source), site.names.findings)
        arguments = (rig.servers, *topics, f"{site.name}-streams", guarantee, *limits, site.folder / "streams")
        return streams_program(rig, site, "FailedLogins", *arguments)

    def quix(rig: Rig, site: Site) -> Program:
        topics = (site.names.events(site.source), site.names.findings)
        arguments = (rig.servers, *topics, f"{site.name}-quix", *limits, site.folder / "quix")
        python = here().bench / "venv" / "bin" / "python"
        return Program([python, _HERE / "quix_failed_logins.py", *arguments], site.log)

    return [
        System(AT_LEAST_ONCE, lambda rig, site: streams(rig, site, "at_least_once")),
        System(EXACTLY_ONCE, lambda rig, site: streams(rig, site, "exactly_once_v2")),
        System(QUIX, quix),
    ]


def streams_program(rig: Rig, site: Site, name: str, *arguments: str | Path) -> Program:
    """Start a Kafka Streams peer."""
    classes = f"{rig.classes}:{here().jars('bench')}/*"
    # The heap of Tocsin's job; the compilers as Java picks them, which is best for it.
    java = (rig.java.executable, "-Xmx512m", "-XX:+UseSerialGC", "-cp", classes)
    return Program([*java, name, *arguments], site.log)


def floor() -> System:
    """One hop through a client, without any work."""

    def echo(rig: Rig, site: Site) -> Program:
        topics = (site.names.events(site.source), site.names.findings)
        return Program([sys.executable, _HERE / "echo.py", rig.servers, *topics, f"{site.name}-echo"], site.log)

    return System(FLOOR, echo)


def compile_streams(rig: Rig) -> None:
    """Compile the Kafka Streams peers.

    Raises:
        ConfigError: this Java has no compiler, the peers' archives are not there, or a source does not compile.
    """
    jars = here().jars("bench")
    if not any(jars.glob("kafka-streams-*.jar")):
        raise ConfigError.one(jars, "does not hold the peers' archives; run: make bench")
    command = [rig.javac, "-Xlint:all", "-Werror", "-d", rig.classes, "-cp", f"{jars}/*"]
    done = subprocess.run(
        [str(word) for word in [*command, *(_HERE / "kafka_streams").glob("*.java")]],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError.one(_HERE / "kafka_streams", f"does not compile:\n{done.stderr}")
