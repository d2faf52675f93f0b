"""Let Airflow decide who may see and do what: the one place that asks it, whose functions for this are not public."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import get_user, requires_access_dag
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import HTTPException, Request, Response, status
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.security import HTTPAuthorizationCredentials
from fastapi.security.utils import get_authorization_scheme_param
from sqlalchemy import select

from tocsin.airflow.addresses import PREFIX
from tocsin.declare.model.names import PLATFORM_DAG
from tocsin.web.access import Rights, Role, User

_may_see = requires_access_dag("GET")
_may_see_log = requires_access_dag("GET", DagAccessEntity.TASK_LOGS)
_PRIVATE = {"Cache-Control": "no-store"}


class AirflowAccess:
    """Airflow's users: who may start runs answers alerts, and who may pause the DAG `platform` operates."""

    is_airflow = True

    async def user(self, request: Request) -> User | None:
        """See `Access`."""
        scheme, token = get_authorization_scheme_param(request.headers.get("Authorization"))
        credentials = HTTPAuthorizationCredentials(scheme=scheme, credentials=token) if token else None
        try:
            found = await get_user(request, None, credentials)
        except HTTPException:
            return None
        return User(found.get_name(), await asyncio.to_thread(_role, found), found)

    def refusal(self, request: Request) -> Response:
        """See `Access`: who follows a link in a mail is led to Airflow's login; a frame of Airflow must show none."""
        if request.method == "GET" and request.headers.get("sec-fetch-dest") == "document":
            root, place = request.scope.get("root_path", ""), request.url
            path = quote(f"{place.path}?{place.query}" if place.query else place.path)
            return RedirectResponse(f"{root.removesuffix(PREFIX)}/api/v2/auth/login?next={path}", 303, _PRIVATE)
        return JSONResponse({"detail": "Not authenticated"}, status.HTTP_401_UNAUTHORIZED, _PRIVATE)

    def check(self, request: Request, user: User, *, logs: bool = False) -> None:
        """See `Access`."""
        (_may_see_log if logs else _may_see)(request, user.identity)

    def rights(self, user: User, dags: Iterable[str]) -> Rights:
        """See `Access`; whether Airflow has read the DAGs already or not."""
        manager, wanted = get_auth_manager(), set(dags)
        seen = manager.filter_authorized_dag_ids(dag_ids=wanted, user=user.identity, method="GET")
        switched = manager.filter_authorized_dag_ids(dag_ids=wanted, user=user.identity, method="PUT")
        return Rights(frozenset(seen), frozenset(switched), user.may_answer)

    def switches(self, dags: Iterable[str]) -> dict[str, bool]:
        """See `Access`."""
        with create_session() as session:
            query = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(list(dags)))
            return {dag: bool(paused) for dag, paused in session.execute(query)}


def _role(user: Any) -> Role:
    manager = get_auth_manager()
    if manager.is_authorized_dag(method="PUT", details=DagDetails(id=PLATFORM_DAG), user=user):
        return Role.OPERATE
    runs = manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, user=user)
    return Role.ANSWER if runs else Role.READ
