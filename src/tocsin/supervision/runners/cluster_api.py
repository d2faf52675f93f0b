"""Ask the API of a Kubernetes cluster; its errors in words. Objects are dicts, as the API writes them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tocsin.model.errors import ConfigError, TransientError
from tocsin.project.blocks.runner_settings import RunnerSettings

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Object = Mapping[str, Any]
"""One object of the API."""
_LONGEST = 300
GONE, CONFLICT = 404, 409


class ClusterError(TransientError, OSError):
    """The API did not do what it was asked; a retry helps once the cause is gone.

    Attributes:
        status: its HTTP status; 0 if it did not answer at all.
    """

    def __init__(self, status: int, what: str) -> None:
        self.status = status
        super().__init__(what)

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Kind:
    """A kind of objects: `path` of its API, and its `plural` there."""

    path: str
    plural: str


STATEFUL_SETS = Kind("/apis/apps/v1", "statefulsets")
PODS = Kind("/api/v1", "pods")
CONFIG_MAPS = Kind("/api/v1", "configmaps")
SECRETS = Kind("/api/v1", "secrets")


class ClusterApi:
    """The objects of one namespace. Every method raises ClusterError, and ConfigError without a usable login."""

    def __init__(self, settings: RunnerSettings, client: ApiClient | None = None) -> None:
        """Ask with `client`; None for the account of this pod or, outside a cluster, for the user's kubeconfig."""
        self._settings, self._client = settings, client

    def list(self, kind: Kind, labels: Mapping[str, str]) -> Sequence[Object]:
        """Return the objects of `kind` that carry all `labels`."""
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        found = self._ask("GET", self._path(kind), query={"labelSelector": selector}).get("items")
        return found or []

    def create(self, kind: Kind, body: Object) -> Object:
        """Create an object, and return it as the API has completed it. Status 409 if one of that name exists."""
        return self._ask("POST", self._path(kind), body)

    def delete(self, kind: Kind, name: str, options: Object) -> None:
        """Delete an object, after all that it owns. It is no error if it is gone, or is not the one of `options`."""
        try:
            self._ask("DELETE", self._path(kind, name), {"kind": "DeleteOptions", "apiVersion": "v1", **options})
        except ClusterError as error:
            if error.status not in (GONE, CONFLICT):
                raise

    def log(self, pod: str, lines: int, *, previous: bool = False) -> Sequence[str]:
        """Return the last `lines` lines of the log of `pod`; those of its container before, if `previous`."""
        query = {"tailLines": str(lines), "previous": str(previous).lower()}
        return self._text("GET", f"{self._path(PODS, pod)}/log", query=query).splitlines()

    def _path(self, kind: Kind, *name: str) -> str:
        return "/".join((kind.path, "namespaces", self._settings.namespace, kind.plural, *name))

    def _ask(
        self, method: str, path: str, body: Object | None = None, query: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        answer = self._text(method, path, body, query)
        try:
            found: dict[str, Any] = json.loads(answer)
        except ValueError as error:
            raise ClusterError(0, f"Kubernetes: {method} {path}: the answer is not JSON") from error
        return found

    def _text(self, method: str, path: str, body: Object | None = None, query: Mapping[str, str] | None = None) -> str:
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - as the client itself

        try:
            client = self._client = self._client or _connect(self._settings)
            request = client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json, */*", "Content-Type": "application/json"},
                body=body,
                auth_settings=["BearerToken"],
            )
            response = client.call_api(*request, _request_timeout=self._settings.timeout_seconds)
            text: str = response.read().decode("utf-8", errors="replace")
        except (HTTPError, OSError) as error:
            raise ClusterError(0, f"Kubernetes does not answer: {error}"[:_LONGEST]) from error
        if response.status >= 400:
            raise ClusterError(response.status, f"Kubernetes: {method} {path}: {response.status} {_reason(text)}")
        return text


def _connect(settings: RunnerSettings) -> ApiClient:
    """Log in as the account of this pod, else as the kubeconfig says."""
    from kubernetes import client  # noqa: PLC0415 - takes two seconds, and most installations have no cluster
    from kubernetes.config import config_exception, incluster_config, kube_config  # noqa: PLC0415

    configuration = client.Configuration()
    try:
        if settings.context is None and _is_in_cluster():
            incluster_config.load_incluster_config(client_configuration=configuration)
        else:
            kube_config.load_kube_config(
                os.environ.get("KUBECONFIG"), context=settings.context, client_configuration=configuration
            )
    except (config_exception.ConfigException, OSError) as error:
        what = f"no login to a Kubernetes cluster: {error}; give the pod a service account, or set KUBECONFIG"
        raise ConfigError.one("the kubeconfig", what, key="runner.kind") from error
    configuration.retries = False  # whoever supervises looks again soon
    return client.ApiClient(configuration)


def _is_in_cluster() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def _reason(answer: str) -> str:
    """Return the message of a Status, else the beginning of the answer."""
    try:
        message = json.loads(answer)["message"]
    except (ValueError, KeyError, TypeError):
        message = answer
    return " ".join(str(message).split())[:_LONGEST]
