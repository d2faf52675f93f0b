"""The login of the job `web`: by name and password, or at an issuer of OpenID Connect. Sessions are signed cookies."""

from __future__ import annotations

import hashlib
import secrets
import time
import warnings
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, RedirectResponse
from starlette.middleware.sessions import SessionMiddleware

from tocsin.declare.blocks.web_settings import OidcSettings, WebUser
from tocsin.declare.setting_blocks import secret_in
from tocsin.declare.settings import Settings
from tocsin.platform.state_file import read_or_make_secret
from tocsin.web.access import Rights, Role, User
from tocsin.web.passwords import FIRST_USER, Guesses, first_password_file, hash_password, is_password
from tocsin.web.site import Form, Here, Site, field

_SESSION_SECONDS = 12 * 3600
_HASHED_AT_ONCE = 2  # 16 MiB and a core each; the others wait without a thread, since pages need those
_NOBODY = hash_password("")  # an unknown name takes as long as a wrong password
routes = APIRouter()


class LoginAccess:
    """Users of the settings, or of an issuer; all of them see all jobs, and nobody switches them here."""

    is_airflow = False

    def __init__(self, settings: Settings) -> None:
        """ConfigError if the secret of the client of OpenID Connect cannot be read."""
        web = settings.web
        self.guesses, self.issuer, self.oidc = Guesses(), None, web.oidc
        self._ended: dict[str, float] = {}  # by the id of a session, when it was ended
        self.hashing = CapacityLimiter(_HASHED_AT_ONCE)
        self.users, self.password_file = dict(web.users), first_password_file(settings)
        marks = {name: user.password for name, user in self.users.items()}
        if self.password_file is not None:
            password = read_or_make_secret(self.password_file)
            self.users = {FIRST_USER: WebUser(password=hash_password(password), role="operate")}
            marks = {FIRST_USER: password}
        self.marks = {name: hashlib.sha256(mark.encode()).hexdigest() for name, mark in marks.items()}
        if web.oidc is not None:
            self.issuer = _client(web.oidc)
        self._roles = {name: Role[user.role.upper()] for name, user in self.users.items()}

    async def user(self, request: Request) -> User | None:
        """See `Access`. A name that has left the settings, or has got another password, is nobody at once."""
        session = request.session
        if session.get("id") in self._ended:
            return None
        if "issuer" in session and self.oidc is not None and session["issuer"] == self.oidc.issuer:
            return User(session["name"], Role(session["role"]))
        name, mark = session.get("name", ""), session.get("mark")
        return User(name, self._roles[name]) if name in self.marks and mark == self.marks[name] else None

    def begin(self, request: Request, **facts: Any) -> None:
        """Begin a session, and forget the one before it."""
        request.session.clear()
        request.session.update({"id": secrets.token_urlsafe(16)} | facts)

    def end(self, request: Request) -> None:
        """End a session, also for whoever has a copy of its cookie; as long as this process runs."""
        now = time.monotonic()
        self._ended = {id: at for id, at in self._ended.items() if now - at < _SESSION_SECONDS}
        self._ended[request.session.get("id", "")] = now
        request.session.clear()

    def refusal(self, request: Request) -> Response:
        """See `Access`: people are led to the login."""
        if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
            place = request.url.path + (f"?{request.url.query}" if request.url.query else "")
            return RedirectResponse(f"/login?next={quote(place)}", 303)
        return JSONResponse({"detail": "Not authenticated"}, 401)

    def check(self, request: Request, user: User, *, logs: bool = False) -> None:
        """See `Access`."""

    def rights(self, user: User, dags: Iterable[str]) -> Rights:
        """See `Access`."""
        del user
        return Rights(frozenset(dags), frozenset(), runs=False)

    def switches(self, dags: Iterable[str]) -> dict[str, bool]:
        """See `Access`."""
        del dags
        return {}

    def role_of(self, claims: dict[str, Any]) -> Role | None:
        """Return the highest role that the claims of an issuer give; None for none."""
        assert self.oidc is not None
        given = claims.get(self.oidc.claim) or []
        groups = [given] if isinstance(given, str) else given
        roles = [Role[role.upper()] for group, role in self.oidc.roles.items() if group in groups]
        return max(roles, default=None)


def add_login(app: FastAPI, settings: Settings) -> None:
    """Add the login to the application; the outermost of its middleware reads the session."""
    app.include_router(routes)
    secret = read_or_make_secret(settings.state / "web.secret")
    is_https = settings.has_tls(settings.web) or settings.web_address.startswith("https:")
    app.add_middleware(
        SessionMiddleware, secret_key=f"session {secret}", session_cookie="tocsin", max_age=_SESSION_SECONDS,
        same_site="lax", https_only=is_https,
    )  # fmt: skip


def _client(oidc: OidcSettings) -> Any:
    with warnings.catch_warnings(record=True):  # it prefers a fork of httpx, which nothing here needs
        from authlib.integrations.starlette_client import OAuth  # noqa: PLC0415 - likewise
    return OAuth().register(
        "issuer",
        client_id=oidc.client_id,
        client_secret=secret_in(oidc.client_secret_file, "web.oidc.client_secret_file"),
        server_metadata_url=f"{oidc.issuer.rstrip('/')}/.well-known/openid-configuration",
        client_kwargs={"scope": "openid email profile", "code_challenge_method": "S256"},
    )


def _access(site: Site) -> LoginAccess:
    assert isinstance(site.access, LoginAccess)
    return site.access


@routes.get("/login")
def show(request: Request, site: Here, next: str = "/alerts") -> Response:
    """The page."""
    return _page(request, site, next)


def _page(request: Request, site: Site, place: str, status: int = 200, fault: str = "") -> Response:
    access = _access(site)
    hint = f"The password of {FIRST_USER} is in {access.password_file}." if access.password_file else ""
    by_issuer = access.oidc.issuer if access.oidc else ""
    facts: dict[str, Any] = {
        "mutes_all": [],  # the event loop must not wait for the alerts DB
        "next": _inside(place),
        "fault": fault,
        "hint": hint,
        "by_name": bool(access.users),
        "by_issuer": by_issuer,
    }
    return site.page(request, "login.html", status, name=FIRST_USER if access.password_file else "", **facts)


def _inside(place: str) -> str:
    """Return the path after the login; one that could lead to another site is not followed."""
    return place if place.startswith("/") and not place.startswith(("//", "/\\")) else "/alerts"


@routes.post("/login")
async def log_in(request: Request, site: Here, form: Form) -> Response:
    """Begin a session for who knows the password."""
    access, name = _access(site), field(form, "name")
    keys = (f"name {name}", f"address {request.client.host if request.client else ''}")
    place = _inside(field(form, "next"))
    if access.guesses.blocked(*keys):
        return _page(request, site, place, 429, "Too many wrong passwords. Wait ten minutes, then try again.")
    access.guesses.add(*keys)  # before the hash: guesses sent at once must not pass the bound
    known, password = access.users.get(name), str(form.get("password", ""))
    hashed = known.password if known else _NOBODY
    if not await to_thread.run_sync(is_password, password, hashed, limiter=access.hashing) or known is None:
        return _page(request, site, place, 401, "This name or password is wrong.")
    access.guesses.forget(*keys)
    access.begin(request, name=name, mark=access.marks[name])
    return RedirectResponse(place, 303)


@routes.post("/login/out")
def log_out(request: Request, site: Here, form: Form) -> Response:
    """End the session."""
    del form
    _access(site).end(request)
    return RedirectResponse("/login", 303)


@routes.get("/login/issuer")
async def ask_issuer(request: Request, site: Here, next: str = "/alerts") -> Any:
    """Lead to the issuer's login."""
    access = _access(site)
    if access.issuer is None:
        raise HTTPException(404)
    request.session.clear()  # or who is logged in could begin a login again and again, and so stay for ever
    request.session["next"] = _inside(next)
    try:
        return await access.issuer.authorize_redirect(request, f"{site.settings.web_address}/login/done")
    except Exception as error:  # its libraries have no common error
        raise HTTPException(502, f"The issuer of logins does not answer ({error}). Try again soon.") from error


@routes.get("/login/done")
async def come_back(request: Request, site: Here) -> Response:
    """Begin a session for who comes from the issuer with a role here."""
    access = _access(site)
    if access.issuer is None or access.oidc is None:
        raise HTTPException(404)
    try:
        claims = dict((await access.issuer.authorize_access_token(request)).get("userinfo") or {})
    except Exception as error:  # likewise; whatever was wrong, nobody is logged in
        raise HTTPException(403, f"The login was not completed ({error}). Begin again.") from error
    name, role = str(claims.get(access.oidc.name) or claims.get("sub") or ""), access.role_of(claims)
    place = request.session.get("next", "/alerts")
    if role is None:
        request.session.clear()
        raise HTTPException(403, f"{name} has no role here; web.oidc.roles names the groups that have one.")
    access.begin(request, name=name, role=int(role), issuer=access.oidc.issuer)
    return RedirectResponse(place, 303)
