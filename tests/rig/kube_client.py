"""A bare client of a Kubernetes API, for what a node or an administrator does in tests."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

PODS = "/api/v1/namespaces/tocsin/pods"
SETS = "/apis/apps/v1/namespaces/tocsin/statefulsets"
CONFIG_MAPS = "/api/v1/namespaces/tocsin/configmaps"
SECRETS = "/api/v1/namespaces/tocsin/secrets"
_CONTENT = {"PATCH": "application/merge-patch+json"}


@dataclass(frozen=True)
class KubeClient:
    """Asks the API at `url`, whose certificate is not checked, as the owner of `token`."""

    url: str
    token: str = ""

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Return the answer; a status of 400 or more is an error with that status as its only argument."""
        headers = {"Content-Type": _CONTENT.get(method, "application/json"), "Authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        context = ssl._create_unverified_context() if self.url.startswith("https") else None
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode()) from error

    def items(self, path: str) -> list[Any]:
        """Return the objects of a list."""
        return list(self.ask("GET", path)["items"])


class Refused(Exception):
    """The API refused, with this status."""

    @property
    def status(self) -> int:
        return int(self.args[0])
