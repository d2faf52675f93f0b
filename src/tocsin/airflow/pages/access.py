"""Decide who may see and do what: the one place that asks Airflow, whose functions for this are no public interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, get_user, requires_access_dag
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import HTTPException, Request, status
from fastapi.responses import JSONResponse
from fastapi.security import HTTPAuthorizationCredentials
from fastapi.security.utils import get_authorization_scheme_param
from sqlalchemy import select

User = GetUserDep  # the user of a request, as an argument of a route

may_see = requires_access_dag("GET")
"""Refuses a user who may not see the DAG that the query names as `dag_id`; without one, who may see no DAG."""

may_see_log = requires_access_dag("GET", DagAccessEntity.TASK_LOGS)
"""The same for logs."""

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]


@dataclass(frozen=True)
class Rights:
    """Rights of one user on the DAGs that were asked about: see, pause, start runs."""

    seen: frozenset[str]
    switched: frozenset[str]
    runs: bool


def rights(user: Any, dags: Iterable[str]) -> Rights:
    """The rights of `user` on `dags`, whether Airflow has read them already or not."""
    manager, wanted = get_auth_manager(), set(dags)
    visible = manager.filter_authorized_dag_ids(dag_ids=wanted, user=user, method="GET")
    switched = manager.filter_authorized_dag_ids(dag_ids=wanted, user=user, method="PUT")
    runs = manager.is_authorized_dag(method="POST", access_entity=DagAccessEntity.RUN, user=user)
    return Rights(frozenset(visible), frozenset(switched), bool(runs))


def switches(dags: Iterable[str]) -> dict[str, bool]:
    """Return whether each of `dags` is paused; one that Airflow has not read yet is missing."""
    with create_session() as session:
        query = select(DagModel.dag_id, DagModel.is_paused).where(DagModel.dag_id.in_(list(dags)))
        return {dag: bool(paused) for dag, paused in session.execute(query)}


class LoggedIn:
    """ASGI middleware that answers nothing but 401 to who has not logged in, whatever is asked for.

    Routes check more than that; but a path that does not exist, or a method that is not allowed, has no route.
    """

    def __init__(self, app: _App) -> None:
        self._app = app

    async def __call__(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        """Pass on what comes from a user."""
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": status.WS_1008_POLICY_VIOLATION})
        elif scope["type"] == "http" and not await _is_user(Request(scope)):
            refused = JSONResponse({"detail": "Not authenticated"}, status.HTTP_401_UNAUTHORIZED, _PRIVATE)
            await refused(scope, receive, send)
        else:
            await self._app(scope, receive, send)


_PRIVATE = {"Cache-Control": "no-store"}


async def _is_user(request: Request) -> bool:
    scheme, token = get_authorization_scheme_param(request.headers.get("Authorization"))
    credentials = HTTPAuthorizationCredentials(scheme=scheme, credentials=token) if token else None
    try:
        await get_user(request, None, credentials)
    except HTTPException:
        return False
    return True
