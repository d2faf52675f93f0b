"""The settings of views: where their sinks are, and who may read them over REST."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from tocsin.project.setting_blocks import ListenSettings, SettingBlock, secret_in


class ViewSettings(SettingBlock):
    """The addresses of sinks. One with a password is given as a file that holds it.

    Attributes:
        postgres, postgres_file: such as postgresql://user@host/database.
        redis, redis_file: such as redis://host:6379/0, or rediss:// for TLS.
        influx, influx_file: such as http://host:8086/write?db=name; see `tocsin.views.sinks.influx_sink`.
    """

    postgres: str | None = None
    postgres_file: Path | None = None
    redis: str | None = None
    redis_file: Path | None = None
    influx: str | None = None
    influx_file: Path | None = None

    def has_address(self, kind: str) -> bool:
        """Return whether the address of the sink `kind` is set."""
        return any(getattr(self, name, None) is not None for name in (kind, f"{kind}_file"))

    def address(self, kind: str) -> str | None:
        """Return the address of the sink `kind`; None if it is not set.

        Raises:
            ConfigError: its file cannot be read.
        """
        path: Path | None = getattr(self, f"{kind}_file")
        if path is not None:
            return secret_in(path, f"views.{kind}_file")
        address: str | None = getattr(self, kind)
        return address


class WebSettings(ListenSettings):
    """The REST answers about views; their server runs when there are views.

    Attributes:
        token_file: holds the token that readers must send, readable by its owner alone. Without one a token is made
            once, in `<state>/web.token`.
    """

    port: int = Field(default=8431, ge=1, le=65535)
    token_file: Path | None = None
