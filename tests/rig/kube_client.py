"""A bare client of a Kubernetes API, for what a node or an administrator does in tests."""

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any

PODS = "/api/v1/namespaces/tocsin/pods"
SETS = "/apis/apps/v1/namespaces/tocsin/statefulsets"
SECRETS = "/api/v1/namespaces/tocsin/secrets"
_MERGE, _APPLY = "application/merge-patch+json", "application/apply-patch+yaml"


@dataclass(frozen=True)
class KubeClient:
    """Asks the API at `url`, whose certificate is not checked, as the owner of `token`."""

    url: str
    token: str = ""

    def ask(self, method: str, path: str, body: Any = None, content: str = "") -> Any:
        """Return the answer, an object or a text; Refused if its status is 400 or more."""
        content = content or (_MERGE if method == "PATCH" else "application/json")
        headers = {"Content-Type": content, "Authorization": f"Bearer {self.token}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        context = ssl._create_unverified_context() if self.url.startswith("https") else None
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                text = answer.read().decode()
                return json.loads(text) if text.startswith("{") else text
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode()) from error

    def apply(self, manifest: Any, *, dry: bool = False) -> Any:
        """Apply a manifest as `kubectl apply --server-side` does: unknown fields are refused, `dry` changes nothing."""
        query = "fieldManager=tests&fieldValidation=Strict" + ("&dryRun=All" if dry else "")
        path = f"{collection_of(manifest)}/{manifest['metadata']['name']}?{query}"
        return self.ask("PATCH", path, manifest, _APPLY)

    def items(self, path: str) -> list[Any]:
        return list(self.ask("GET", path)["items"])


def collection_of(manifest: Any) -> str:
    """Return the path of the objects of a manifest's kind, in its namespace."""
    version, namespace = manifest["apiVersion"], manifest["metadata"].get("namespace")
    root = "/api/v1" if version == "v1" else f"/apis/{version}"
    return f"{root}{f'/namespaces/{namespace}' if namespace else ''}/{manifest['kind'].lower()}s"


class Refused(Exception):
    """The API refused, with this status."""

    @property
    def status(self) -> int:
        return int(self.args[0])
