"""A Kubernetes API in this process, with what the runner rests on; tests/kubernetes tries the same on a real one.

It keeps names and uids apart (409, 404, preconditions), refuses what it is told to (403), completes objects, lets
deletions take their time, and does what the controllers of StatefulSets and of garbage do, at each request. It checks
no schema, and knows no watch and no version of an object but its generation.
"""

from __future__ import annotations

import base64
import copy
import json
import re
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.rig.kube_client import KubeClient
from tests.rig.played_node import PlayedNode

_PATH = re.compile(r"^/api(?:s/apps)?/v1/namespaces/tocsin/(?P<plural>\w+)(?:/(?P<name>[\w.-]+))?(?:/(?P<sub>\w+))?$")
_FAR = "9999-01-01T00:00:00Z"
_VERBS = {"GET": "list", "POST": "create", "DELETE": "delete"}
_ENDED = ("Succeeded", "Failed")


class PlayedKubernetes:
    """One namespace, and a node; of the `with` block."""

    def __init__(self, folder: Path) -> None:
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._lock = threading.RLock()
        self._refused: set[tuple[str, str]] = set()
        self.is_away = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self.client = KubeClient(f"http://127.0.0.1:{self._server.server_port}", "node")
        self.node = PlayedNode(self.client, folder)

    def __enter__(self) -> PlayedKubernetes:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        self.node.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.node.__exit__()
        self._server.shutdown()
        self._server.server_close()

    @contextmanager
    def refusing(self, verb: str, plural: str) -> Iterator[None]:
        """Answer with 403 what somebody else than the node asks, as without that right."""
        self._refused.add((verb, plural))
        yield
        self._refused.discard((verb, plural))

    @contextmanager
    def away(self) -> Iterator[None]:
        """Take requests and answer none."""
        self.is_away = True
        yield
        self.is_away = False

    def answer(self, method: str, path: str, body: Any, token: str) -> tuple[int, Any]:
        """Answer one request with a status, and an object or the text of a log."""
        url = urlsplit(path)
        match = _PATH.match(url.path)
        if match is None:
            return _status(404, "no such path")
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        plural, name, sub = match["plural"], match["name"], match["sub"]
        verb = _VERBS.get(method, "")
        if (verb, plural) in self._refused and token != "node":
            return _status(403, f'{plural} is forbidden: User "jobs" cannot {verb} resource "{plural}"')
        with self._lock:
            found = self._do(method, (plural, name, sub), body, query)
            self._control()
        return found

    def _do(self, method: str, of: tuple[str, str, str], body: Any, query: Mapping[str, str]) -> tuple[int, Any]:
        plural, name, sub = of
        if method == "POST" and not sub:
            return self._create(plural, body)
        if name is None:
            wanted = dict(one.split("=") for one in query.get("labelSelector", "").split(",") if one)
            every = [one for (kind, _), one in self._objects.items() if kind == plural]
            chosen = [one for one in every if wanted.items() <= (one["metadata"].get("labels") or {}).items()]
            return 200, copy.deepcopy({"items": chosen})
        one = self._objects.get((plural, name))
        if one is None:
            return _status(404, f'{plural} "{name}" not found')
        if sub == "log":
            return self._log(name, query)
        if method == "DELETE" or sub == "eviction":
            return self._delete(plural, one, (body or {}).get("deleteOptions", body or {}))
        if method == "POST":  # a binding
            one["spec"]["nodeName"] = body["target"]["name"]
        elif method == "PATCH":
            before = copy.deepcopy(one.get("spec"))
            _merge(one, body)
            one["metadata"]["generation"] += one.get("spec") != before
        return 200, copy.deepcopy(one)

    def _create(self, plural: str, body: Any) -> tuple[int, Any]:
        name = body["metadata"]["name"]
        if (plural, name) in self._objects:
            return _status(409, f'{plural} "{name}" already exists')
        one = copy.deepcopy(body)
        one["metadata"] |= {"uid": str(uuid.uuid4()), "generation": 1}
        for key, value in one.pop("stringData", {}).items():
            one.setdefault("data", {})[key] = base64.b64encode(value.encode()).decode()
        self._objects[plural, name] = one
        return 201, copy.deepcopy(one)

    def _delete(self, plural: str, one: dict[str, Any], options: Any) -> tuple[int, Any]:
        own = one["metadata"]
        if options.get("preconditions", {}).get("uid", own["uid"]) != own["uid"]:
            return _status(409, "the UID in the precondition does not match")
        if plural == "pods":
            grace = options.get("gracePeriodSeconds", one["spec"].get("terminationGracePeriodSeconds", 30))
            if grace == 0 or one.get("status", {}).get("phase") in _ENDED:
                del self._objects[plural, own["name"]]
            else:
                shorter = min(grace, own.get("deletionGracePeriodSeconds", grace))
                own |= {"deletionTimestamp": _FAR, "deletionGracePeriodSeconds": shorter}
        elif options.get("propagationPolicy") == "Foreground":
            own.setdefault("deletionTimestamp", _FAR)
            own["generation"] += 1
        else:
            del self._objects[plural, own["name"]]
            for dependent in self._owned_by(own["uid"]) if options.get("propagationPolicy") == "Orphan" else ():
                del dependent["metadata"]["ownerReferences"]
        return 200, copy.deepcopy(one)

    def _log(self, pod: str, query: Mapping[str, str]) -> tuple[int, Any]:
        try:
            return 200, self.node.log(pod, int(query["tailLines"]), previous=query.get("previous") == "true")
        except StopIteration:
            return _status(400, f'container "job" in pod "{pod}" is waiting to start')

    def _owned_by(self, uid: str) -> list[dict[str, Any]]:
        of = [(one, one["metadata"].get("ownerReferences") or ()) for one in self._objects.values()]
        return [one for one, owners in of if any(owner["uid"] == uid for owner in owners)]

    def _control(self) -> None:
        """Do what the controllers do."""
        for (plural, name), one in list(self._objects.items()):
            if plural == "statefulsets":
                self._control_set(name, one)
        uids = {one["metadata"]["uid"] for one in self._objects.values()}
        for (plural, _), one in list(self._objects.items()):
            owners = one["metadata"].get("ownerReferences") or ()
            if owners and not any(owner["uid"] in uids for owner in owners) and not _is_going(one):
                self._delete(plural, one, {})

    def _control_set(self, name: str, one: dict[str, Any]) -> None:
        own, pod = one["metadata"], self._objects.get(("pods", f"{name}-0"))
        wanted = one["spec"]["replicas"] > 0 and not _is_going(one)
        if wanted and pod is None:
            template = copy.deepcopy(one["spec"]["template"])
            metadata = {**template["metadata"], "name": f"{name}-0", "ownerReferences": [{"uid": own["uid"]}]}
            self._create("pods", {"metadata": metadata, "spec": template["spec"]})
        elif pod is not None and not _is_going(pod) and not (wanted and _is_sound(pod)):
            self._delete("pods", pod, {})
        elif _is_going(one) and pod is None:
            del self._objects["statefulsets", name]


def _is_going(one: Any) -> bool:
    return "deletionTimestamp" in one["metadata"]


def _is_sound(pod: Any) -> bool:
    return pod.get("status", {}).get("phase") not in _ENDED


def _merge(one: dict[str, Any], patch: Any) -> None:
    for key, value in patch.items():
        if isinstance(value, dict) and isinstance(one.get(key), dict):
            _merge(one[key], value)
        else:
            one[key] = value


def _status(code: int, message: str) -> tuple[int, Any]:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}


def _handler_of(cluster: PlayedKubernetes) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            if cluster.is_away:
                self.close_connection = True
                return
            code, found = cluster.answer(self.command, self.path, body, token)
            data = (found if isinstance(found, str) else json.dumps(found)).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
