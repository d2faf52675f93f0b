"""The settings of views: where their sinks are."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from tocsin.declare.setting_blocks import SettingBlock, secret_in
from tocsin.declare.sinks import SINKS


class ViewSettings(SettingBlock, extra="allow"):
    """The addresses of sinks: each as the key of its name, or, with a password, in a file that the key NAME_file names.

    `postgres = "postgresql://user@host/database"`, `redis = "redis://host:6379/0"` (`rediss://` for TLS),
    `influx = "http://host:8086/write?db=name"`, of version 2 `"http://:token@host:8086/api/v2/write?org=a&bucket=b"`.
    """

    __pydantic_extra__: dict[str, str | Path | None]

    @model_validator(mode="after")
    def _names_sinks(self) -> Self:
        for key in self.__pydantic_extra__:
            if key.removesuffix("_file") not in SINKS:
                raise ValueError(f"has no sink '{key}'; there are {', '.join(SINKS)}, each also with '_file'")
        return self

    def has_address(self, kind: str) -> bool:
        """Return whether the address of the sink `kind` is set."""
        return any(self.__pydantic_extra__.get(key) is not None for key in (kind, f"{kind}_file"))

    def address(self, kind: str) -> str | None:
        """Return the address of the sink `kind`; None if it is not set.

        Raises:
            ConfigError: its file cannot be read.
        """
        path, address = (self.__pydantic_extra__.get(key) for key in (f"{kind}_file", kind))
        if path is not None:
            return secret_in(Path(path), f"views.{kind}_file")
        return None if address is None else str(address)
