"""The settings of the pages: where they are, and who may log in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from tocsin.declare.blocks.receiver_settings import check_address
from tocsin.declare.setting_blocks import ListenSettings, SettingBlock

WebRole = Literal["read", "answer", "operate"]


def _hash(text: str) -> str:
    if not re.fullmatch(r"scrypt:\d+:\d+:\d+:[\w=-]+:[\w=-]+", text, re.ASCII):
        raise ValueError("is no hash of a password; write what `tocsin web --hash-password` prints")
    return text


class WebUser(SettingBlock):
    """A person who logs in with a password.

    Attributes:
        password: its hash, as `tocsin web --hash-password` prints it.
        role: `read` looks; `answer` also acknowledges, resolves and silences alerts; `operate` may also silence all.
    """

    password: Annotated[str, AfterValidator(_hash)]
    role: WebRole = "answer"


class OidcSettings(SettingBlock):
    """Logins by OpenID Connect.

    Attributes:
        issuer: its address, below which `/.well-known/openid-configuration` is; https, or of this machine.
        plain_http: allows an issuer by http, such as a service of the same cluster: whoever can change what passes
            between it and the job `web` can log in as anybody.
        client_id: our name there, with `<web.address>/login/done` as redirect address.
        client_secret_file: holds the secret that goes with it.
        name: the claim that names a person.
        claim: the claim that holds their groups or roles, one or a list.
        roles: by one of these, the role here; the highest counts, and who has none may not log in.
    """

    issuer: str
    plain_http: bool = False
    client_id: str
    client_secret_file: Path
    name: str = "email"
    claim: str = "groups"
    roles: dict[str, WebRole]

    @model_validator(mode="after")
    def _safe(self) -> Self:
        try:
            check_address(self.issuer, plain_http=self.plain_http)
        except ValueError as error:
            raise ValueError(f"issuer {error}; plain_http = true allows http inside a cluster") from error
        return self


class WebSettings(ListenSettings):
    """The pages about alerts, jobs and views, and the REST answers about views.

    Attributes:
        address: at which people reach the pages, such as `https://tocsin.example.com`, for links in mails; that of
            Airflow with `/tocsin` when they are to lead there. Without one it follows from `host` and `port`.
        token_file: holds the token that readers of views must send, readable by its owner alone. Without one a token
            is made once, in `<state>/web.token`.
        users: by name, who logs in with a password. Without users and `oidc` there is one, `operator`, whose password
            is made once, in `<state>/web.password`.
        oidc: logins by OpenID Connect, beside those of users; None for none.
    """

    port: int = Field(default=8431, ge=1, le=65535)
    address: str | None = Field(default=None, pattern=r"^https?://[^\s/?#]+[^\s?#]*$")
    token_file: Path | None = None
    users: dict[str, WebUser] = Field(default_factory=dict)
    oidc: OidcSettings | None = None

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.oidc is not None and self.address is None and self.local_host != self.host:
            raise ValueError(f"oidc leads people back to the pages: with the host {self.host} it also needs address")
        return self
