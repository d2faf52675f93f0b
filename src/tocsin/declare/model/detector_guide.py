"""Hold what a detector declares for the people who get its alerts, apart from the contract that set-up reads.

To show another key, declare it (`DetectorSpec`, `tocsin.declare.keywords`) and add a field of its name here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from tocsin.declare.model.alert_matcher import AlertLabels
from tocsin.declare.model.detector import DetectorSpec
from tocsin.declare.model.sizes import number

_TECHNIQUE = re.compile(r"(T\d{4})(?:\.(\d{3}))?")


def link_of(text: str) -> str:
    """Return the address that a tag, reference or runbook stands for: its own, or MITRE's of T1110.001; "" if none."""
    if text.startswith(("https://", "http://")) and not re.search(r"\s", text):
        return text
    match = _TECHNIQUE.fullmatch(text)
    return f"https://attack.mitre.org/techniques/{'/'.join(filter(None, match.groups()))}/" if match else ""


class DetectorGuide(BaseModel, frozen=True, extra="ignore"):
    """The part of a detector's declaration that people see with its alerts. An alert keeps it as one document.

    A further field needs a default, for alerts from before.
    """

    title: str
    owner: str
    runbook: str
    false_positives: str = ""
    tags: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    email_limit: float | None = None
    urgent_limit: float | None = None

    @classmethod
    def of(cls, spec: DetectorSpec) -> DetectorGuide:
        """Take it from a declaration."""
        same = {name: getattr(spec, name) for name in DetectorGuide.model_fields if hasattr(spec, name)}
        return DetectorGuide(**same, email_limit=spec.levels.email, urgent_limit=spec.levels.urgent)

    @property
    def guide(self) -> dict[str, Any]:
        """The fields, as an alert keeps them."""
        return {name: getattr(self, name) for name in DetectorGuide.model_fields}

    def labels(self, detector: str, level: str, entity: Mapping[str, str]) -> AlertLabels:
        """Return what matchers look at of an alert of `detector`."""
        return AlertLabels(detector, self.owner, level, entity, self.tags)

    @property
    def facts(self) -> dict[str, str]:
        """What to show besides title and limits, by what it is called; what is not declared is left out."""
        texts = {name: self.guide[name] for name in ("owner", "runbook", "false_positives")}
        texts |= {name: ", ".join(self.guide[name]) for name in ("tags", "references")}
        return {name.replace("_", " "): " ".join(text.split()) for name, text in texts.items() if text}

    @property
    def limits_text(self) -> str:
        """Say which levels are reached above which score."""
        limits = {"e-mail": self.email_limit, "urgent": self.urgent_limit}
        return ", ".join(f"{level} above {number(limit)}" for level, limit in limits.items() if limit is not None)
