"""The kinds of declarations that have versions, any of which an operator can go back to: detectors and flows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.model.detector import DetectorSpec
from tocsin.model.errors import ConfigError, Fault, nearest
from tocsin.model.flow import FlowSpec
from tocsin.model.names import DETECTOR, FLOW, JobName
from tocsin.project import keywords
from tocsin.project.catalog import Catalog
from tocsin.project.declaration import read_flow, read_spec
from tocsin.project.feeding import faults_of_findings, faults_of_flows

_ALWAYS = ("path", "version", "code", "tables")


@dataclass(frozen=True, kw_only=True)
class VersionedKind:
    """A kind of declaration that has versions.

    Attributes:
        word: of its jobs.
        folder: of its files.
        read: reads such a file.
        declared: all that can be read, by name.
        one: the one of a name; ConfigError when there is none.
        computes: the fields of a spec in which versions may differ.
        fits: whether an earlier version can run beside what else is declared now.
    """

    word: str
    folder: str
    read: Callable[[Path], Any]
    declared: Callable[[Catalog], dict[str, Any]]
    one: Callable[[Catalog, str], Any]
    computes: tuple[str, ...]
    fits: Callable[[Any, Catalog], bool]

    def place(self, name: str) -> str:
        """Name the file in the project, without its ending."""
        return f"{self.folder}/{name}"

    def broken(self, catalog: Catalog) -> list[str]:
        """List the names of the files that cannot be read."""
        return [place.partition("/")[2] for place in catalog.broken if place.startswith(self.place(""))]


def _flow_fits(spec: FlowSpec, catalog: Catalog) -> bool:
    """Return whether it reads and writes what its file does; where that cannot be read, what no other flow writes."""
    if spec.name in catalog.flows:
        now = catalog.flows[spec.name]
        return ({*spec.sources}, spec.to) == ({*now.sources}, now.to)
    if not {*spec.sources, spec.to} <= catalog.sources.keys():
        return False
    return spec.name not in faults_of_flows({**catalog.flows, spec.name: spec}, catalog.sources)


def _detector_fits(spec: DetectorSpec, catalog: Catalog) -> bool:
    """Return whether all that it reads is there, and nothing of it is made of its own findings."""
    faulty = faults_of_findings({**catalog.detectors, spec.name: spec}, ())
    return spec.name not in faulty and all(map(catalog.has_source, spec.sources))


VERSIONED = {
    kind.word: kind
    for kind in (
        VersionedKind(
            word=DETECTOR,
            folder="detectors",
            read=read_spec,
            declared=lambda catalog: catalog.detectors,
            one=Catalog.detector,
            computes=(*_ALWAYS, *keywords.DETECTOR.meaning),
            fits=_detector_fits,
        ),
        VersionedKind(
            word=FLOW,
            folder="flows",
            read=read_flow,
            declared=lambda catalog: catalog.flows,
            one=Catalog.flow,
            computes=_ALWAYS,
            fits=_flow_fits,
        ),
    )
}


def versioned_job(catalog: Catalog, name: str) -> str:
    """Find the job of the detector or flow `name`; where both are called so, of `detector:NAME` or `flow:NAME`.

    Raises:
        ConfigError: there is none, or there are two.
    """
    if JobName.parse(name).kind in VERSIONED and JobName.parse(name).name:
        return name
    there = {kind.word: {*kind.declared(catalog), *kind.broken(catalog)} for kind in VERSIONED.values()}
    found = [str(JobName(word, name)) for word, names in there.items() if name in names]
    if len(found) > 1:
        raise ConfigError.one(name, f"there are two of this name; say {' or '.join(found)}")
    if not found:
        known = sorted(set().union(*there.values()))
        what = f"no detector or flow '{name}' (there are: {', '.join(known) or 'none'})"
        raise ConfigError([Fault("detectors/, flows/", what, nearest=nearest(name, known))])
    return found[0]
