"""Logins on Kafka: one for each role, so that a job may do there what its kind needs and no more."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict

Role = Literal[
    "ingest", "table", "flow", "detector", "compute", "view", "indexer", "notifier", "drain", "web", "exporter",
    "operator",
]  # fmt: skip
OPERATOR: Role = "operator"
ROLES: tuple[Role, ...] = get_args(Role)
"""The kinds of jobs, and who operates them."""


class KafkaLogin(BaseModel):
    """The login of one role.

    Attributes:
        username: its principal.
        password_file: file that holds the password.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    username: str
    password_file: Path
