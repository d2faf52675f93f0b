"""The settings of where state is kept that must outlive a machine."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, field_validator

from tocsin.declare.setting_blocks import SettingBlock

FILE, S3 = "file:", "s3a://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class StorageSettings(SettingBlock):
    """The places of checkpoints and of history, and the object store that they may lie in.

    Attributes:
        checkpoints: URI of the folder of all checkpoints, `s3a://bucket/prefix` or `file:/folder`; None is
            `checkpoints` in the state folder.
        history: URI of the folder of landed files, sealed days and their tables, likewise; `history` in the state
            folder when None.
        s3_endpoint: URL of an object store that is not Amazon's, such as `https://minio.example.com:9000`.
        s3_region: of the bucket.
        s3_credentials_file: who may read and write it, in the form of `~/.aws/credentials`; None takes what the
            machine offers: that file, or the role of the machine or container.
    """

    checkpoints: str | None = None
    history: str | None = None
    s3_endpoint: str | None = Field(default=None, pattern=r"^https?://[^/@\s]+$")
    s3_region: str = Field(default="us-east-1", pattern="^[a-z0-9-]+$")
    s3_credentials_file: Path | None = None

    @field_validator("checkpoints", "history")
    @classmethod
    def _usable(cls, uri: str | None) -> str | None:
        if uri is None:
            return None
        if uri.startswith(f"{FILE}/"):
            return f"{FILE}/{uri.removeprefix(FILE).strip('/')}"  # file:///folder as well
        bucket, _, prefix = uri.removeprefix(S3).rstrip("/").partition("/")
        if not uri.startswith(S3):
            raise ValueError(f"must begin with {S3} or {FILE}/, not {uri.partition(':')[0]!r}")
        if not _BUCKET.fullmatch(bucket):
            raise ValueError(f"names no bucket: 3 to 63 small letters, digits, dots and hyphens, not {bucket!r}")
        if not re.fullmatch(r"[\w.-]+(/[\w.-]+)*", prefix, re.ASCII) or {".", ".."} & {*prefix.split("/")}:
            raise ValueError(f"needs a prefix behind the bucket, of letters, digits, '.', '_', '-' and '/': {uri!r}")
        return uri.rstrip("/")

    @property
    def is_remote(self) -> bool:
        """Return whether checkpoints lie in an object store."""
        return self.checkpoints is not None and self.checkpoints.startswith(S3)

    @property
    def has_remote_history(self) -> bool:
        """Return whether history lies in an object store."""
        return self.history is not None and self.history.startswith(S3)

    @property
    def remote_uri(self) -> str | None:
        """Return a URI in the object store, that of history first; None if neither is."""
        return self.history if self.has_remote_history else self.checkpoints if self.is_remote else None

    def setting_of(self, uri: str) -> str:
        """Name the setting that has put `uri` where it is."""
        is_history = self.history is not None and f"{uri}/".startswith(f"{self.history}/")
        return "storage.history" if is_history else "storage.checkpoints"
