"""Logins at an issuer of OpenID Connect, played by a server of this file."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from starlette.testclient import TestClient

from tests.rig.samples.project import copy_project
from tocsin.declare.blocks.web_settings import OidcSettings, WebSettings
from tocsin.declare.settings import Settings
from tocsin.views.rest.view_api import OpenViews
from tocsin.web.server import application

KEY, FOREIGN = RSAKey.generate_key(2048), RSAKey.generate_key(2048)


class Issuer:
    """Answers what a client asks; `claims` are of who logs in, `key` signs them."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.key = KEY
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.answer(self)

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        about = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}
        about |= {f"{name}_endpoint": f"{self.url}/{name}" for name in ("authorization", "token")}
        now = int(time.time())
        claims = {"iss": self.url, "aud": "tocsin", "iat": now, "exp": now + 60, "sub": "1"} | self.claims
        found = {
            "/.well-known/openid-configuration": about | {"id_token_signing_alg_values_supported": ["RS256"]},
            "/keys": KeySet([KEY]).as_dict(private=False),
            "/token": {
                "access_token": "a", "token_type": "Bearer",
                "id_token": jwt.encode({"alg": "RS256", "kid": KEY.thumbprint()}, claims, self.key),
            },
        }[request.path]  # fmt: skip
        body = json.dumps(found).encode()
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def client(tmp_path: Path, migrated_file: Path, issuer: Issuer) -> TestClient:
    copy_project(tmp_path)
    (tmp_path / "secret").write_text("secret")
    roles: Any = {"oncall": "answer", "staff": "read"}
    oidc = OidcSettings(
        issuer=issuer.url, client_id="tocsin", client_secret_file=tmp_path / "secret", roles=roles
    )  # fmt: skip
    settings = Settings(project=tmp_path, state=tmp_path / "state", web=WebSettings(oidc=oidc))
    settings.state.mkdir()
    shutil.copy(migrated_file, settings.state / "alerts.db")
    app = application(settings, OpenViews(settings))
    return TestClient(app, base_url="http://127.0.0.1:8431", follow_redirects=False, headers={"Accept": "text/html"})


def come_back(client: TestClient, issuer: Issuer, **claims: Any) -> Any:
    """Go to the issuer, log in with `claims`, and come back with what it gives."""
    there = urlsplit(client.get("/login/issuer?next=/silences").headers["location"])
    query = {name: values[0] for name, values in parse_qs(there.query).items()}
    assert query["redirect_uri"] == "http://127.0.0.1:8431/login/done"
    assert query["code_challenge_method"] == "S256"
    issuer.claims = {"nonce": query["nonce"], "email": "ann@example.com"} | claims
    return client.get("/login/done", params={"code": "c", "state": query["state"]})


@pytest.mark.parametrize(
    ("groups", "may"), [(["staff", "oncall"], 422), ("staff", 403), ([{"name": "oncall"}, "staff"], 403)]
)
def test_who_has_a_role_there_has_it_here(client: TestClient, issuer: Issuer, groups: Any, may: int) -> None:
    assert "Name" not in client.get("/login").text, "there are no passwords beside it"
    answer = come_back(client, issuer, groups=groups)
    assert (answer.status_code, answer.headers["location"]) == (303, "/silences")
    page = client.get("/silences")
    assert "ann@example.com" in page.text
    csrf = page.text.partition('name="csrf" value="')[2].partition('"')[0]
    fields = {"csrf": csrf, "detector": "a", "hours": "1", "why": ""}
    assert client.post("/silences", data=fields).status_code == may


def test_a_session_does_not_become_younger_by_another_login_that_is_not_completed(
    client: TestClient, issuer: Issuer
) -> None:
    come_back(client, issuer, groups="staff")
    assert client.get("/silences").status_code == 200
    client.get("/login/issuer")
    assert client.get("/silences").status_code == 303


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"groups": ["other"]}, "ann@example.com has no role here"),
        ({}, "ann@example.com has no role here"),
        ({"groups": ["oncall"], "nonce": "replayed"}, "The login was not completed"),
        ({"groups": ["oncall"], "aud": "another"}, "The login was not completed"),
        ({"groups": ["oncall"], "exp": 1}, "The login was not completed"),
    ],
)
def test_nobody_else_gets_in(client: TestClient, issuer: Issuer, claims: dict[str, Any], reason: str) -> None:
    answer = come_back(client, issuer, **claims)
    assert (answer.status_code, reason in answer.text) == (403, True)
    assert client.get("/silences").status_code == 303


def test_a_token_that_another_has_signed_and_an_answer_that_nobody_asked_for_are_refused(
    client: TestClient, issuer: Issuer
) -> None:
    issuer.key = FOREIGN
    assert come_back(client, issuer, groups=["oncall"]).status_code == 403
    issuer.key = KEY
    assert client.get("/login/done", params={"code": "c", "state": "made up"}).status_code == 403
    assert client.get("/silences").status_code == 303


def test_an_issuer_that_is_away_is_said(client: TestClient, issuer: Issuer) -> None:
    issuer.server.shutdown()
    issuer.server.server_close()
    answer = client.get("/login/issuer")
    assert (answer.status_code, "does not answer" in answer.text) == (502, True)


@pytest.mark.parametrize(
    ("issuer_url", "plain_http", "is_safe"),
    [
        ("https://login.example.com", False, True),
        ("http://localhost:1", False, True),
        ("http://keycloak.auth.svc", False, False),
        ("http://keycloak.auth.svc", True, True),
        ("ftp://keycloak.auth.svc", True, False),
    ],
)
def test_an_issuer_is_asked_over_https_unless_the_settings_say_that_http_is_safe(
    issuer_url: str, plain_http: bool, is_safe: bool
) -> None:
    settings: Any = {"issuer": issuer_url, "client_id": "a", "client_secret_file": "b", "roles": {}}
    settings["plain_http"] = plain_http
    with nullcontext() if is_safe else pytest.raises(ValueError, match=r"must begin with https://.*plain_http = true"):
        OidcSettings.model_validate(settings)


def test_an_issuer_needs_an_address_to_lead_people_back_to() -> None:
    oidc = {"issuer": "https://a.b", "client_id": "a", "client_secret_file": "b", "roles": {}}
    with pytest.raises(ValueError, match="it also needs address"):
        WebSettings.model_validate({"host": "0.0.0.0", "oidc": oidc})
