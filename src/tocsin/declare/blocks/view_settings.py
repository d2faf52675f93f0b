"""The settings of views: where their sinks are, and who may read them over REST."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from tocsin.declare.setting_blocks import ListenSettings, SettingBlock, secret_in
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


class WebSettings(ListenSettings):
    """The pages about alerts, jobs and views, and the REST answers about views.

    Attributes:
        address: at which people reach the pages, such as `https://tocsin.example.com`, for links in mails; that of
            Airflow with `/tocsin` when they are to lead there. Without one it follows from `host` and `port`.
        token_file: holds the token that readers must send, readable by its owner alone. Without one a token is made
            once, in `<state>/web.token`.
    """

    port: int = Field(default=8431, ge=1, le=65535)
    address: str | None = Field(default=None, pattern=r"^https?://[^\s/?#]+[^\s?#]*$")
    token_file: Path | None = None

    @property
    def public_address(self) -> str:
        """The address without a slash at its end; empty if it is not given and `host` stands for all of a machine."""
        if self.address is not None:
            return self.address.rstrip("/")
        if self.host in ("0.0.0.0", "::"):
            return ""
        return f"{'https' if self.certificate_file else 'http'}://{self.host}:{self.port}"
