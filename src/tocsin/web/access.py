"""Who looks at the pages, and what they may do: Airflow says so where it serves them, else our own login."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Protocol

from fastapi import Depends, HTTPException, Request, Response


class Role(IntEnum):
    """A right that includes those before it."""

    READ = 1
    ANSWER = 2
    """Acknowledge, resolve and silence alerts."""
    OPERATE = 3
    """Also silence every alert at once."""


@dataclass(frozen=True)
class User:
    """A person who is logged in; `identity` is that of the server that knows them."""

    name: str
    role: Role
    identity: Any = None

    @property
    def may_answer(self) -> bool:
        """Whether they may act on alerts."""
        return self.role >= Role.ANSWER


@dataclass(frozen=True)
class Rights:
    """Rights of one user on the DAGs that were asked about: see, pause, start runs."""

    seen: frozenset[str]
    switched: frozenset[str]
    runs: bool


class Access(Protocol):
    """Decides about users."""

    is_airflow: bool
    """Whether the pages are in Airflow, whose API pauses and restarts jobs."""

    async def user(self, request: Request) -> User | None:
        """Return who asks; None for somebody who is not logged in."""

    def refusal(self, request: Request) -> Response:
        """Answer somebody who is not logged in."""

    def check(self, request: Request, user: User, *, logs: bool = False) -> None:
        """Refuse a user who may not see the DAG that the query names as `dag_id`, or its logs, by an HTTPException."""

    def rights(self, user: User, dags: Iterable[str]) -> Rights:
        """Return the rights of `user` on `dags`."""

    def switches(self, dags: Iterable[str]) -> Mapping[str, bool]:
        """Return whether each of `dags` is paused; one of which that is not known is missing."""


def _current(request: Request) -> User:
    user: User | None = request.scope.get("tocsin.user")
    if user is None:
        raise HTTPException(401, "log in first")
    return user


Visitor = Annotated[User, Depends(_current)]
"""The user of a request, as an argument of a route."""


def _with_role(role: Role) -> Callable[[User], User]:
    def check(user: Visitor) -> User:
        if user.role < role:
            raise HTTPException(403, f"{user.name} may look, and not act: that needs the role {role.name.lower()}")
        return user

    return check


Answerer = Annotated[User, Depends(_with_role(Role.ANSWER))]
"""The same, who may act on alerts."""
