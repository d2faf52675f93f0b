"""Logins on Kafka: one for each role, so that a job may do there what its kind needs and no more."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

OPERATOR = "operator"
"""The role of who operates the jobs. The others are the kinds of jobs."""


class KafkaLogin(BaseModel):
    """The login of one role.

    Attributes:
        username: its principal.
        password_file: file that holds the password.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    username: str
    password_file: Path
