"""The kinds of declarations that have versions: detectors and flows."""

from __future__ import annotations

from tocsin.declare.catalog import Catalog
from tocsin.declare.model.errors import ConfigError, Fault, nearest
from tocsin.declare.model.names import DETECTOR, FLOW, JobName, detector_job, flow_job


def declared_version(catalog: Catalog, job: str) -> str:
    """Return the version in the file of a detector's or flow's job; empty if the file is gone or cannot be read."""
    own = JobName.parse(job)
    spec = (catalog.detectors if own.kind == DETECTOR else catalog.flows).get(own.name)
    return "" if spec is None else spec.version


def versioned_job(catalog: Catalog, name: str) -> str:
    """Find the job of the detector or flow `name`; where both are called so, of `detector:NAME` or `flow:NAME`.

    Raises:
        ConfigError: there is none, or there are two.
    """
    if JobName.parse(name).kind in (DETECTOR, FLOW) and JobName.parse(name).name:
        return name
    broken = [place.partition("/") for place in catalog.broken]
    there = {
        detector_job: {*catalog.detectors, *(own for folder, _, own in broken if folder == "detectors")},
        flow_job: {*catalog.flows, *(own for folder, _, own in broken if folder == "flows")},
    }
    found = [job(name) for job, names in there.items() if name in names]
    if len(found) > 1:
        raise ConfigError.one(name, f"there are two of this name; say {' or '.join(found)}")
    if not found:
        known = sorted(set().union(*there.values()))
        what = f"no detector or flow '{name}' (there are: {', '.join(known) or 'none'})"
        raise ConfigError([Fault("detectors/, flows/", what, nearest=nearest(name, known))])
    return found[0]
