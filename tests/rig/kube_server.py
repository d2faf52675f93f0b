"""A real API of Kubernetes with its controllers, built from source, on etcd and loopback. No scheduler, no kubelet."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml  # type: ignore[import-untyped]  # comes with yamllint; its stubs are one more package for one call
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.rig.certificates import write_certificate
from tests.rig.go_programs import build
from tests.rig.kube_client import KubeClient, Refused, collection_of
from tests.rig.played_node import NODE, PlayedNode
from tests.rig.waiting import await_that
from tocsin.dev.servers.ports import free_ports
from tocsin.setup.paths import here

VERSION = "1.37.2"
SUPERVISOR, MANIFESTS = "tocsin-supervisor", here().root / "docs" / "run" / "kubernetes.yaml"
_RIGHTS = ("ServiceAccount", "Role", "RoleBinding")
PROGRAMS = ("kube-apiserver", "kube-controller-manager")
ADMIN = "admin-token"
ACCOUNTS = "/api/v1/namespaces/tocsin/serviceaccounts"
# The strictest standard of pods that Kubernetes knows.
_NAMESPACE = {"metadata": {"name": "tocsin", "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
_CONTROLLERS = ",".join(
    f"{one}-controller" for one in ("statefulset", "garbage-collector", "serviceaccount", "namespace", "resourcequota")
)


def read_manifests() -> list[Any]:
    """Read what an installation applies, in its order."""
    return list(yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8")))


def build_servers(folder: Path) -> None:
    """Build the programs into `folder`, unless they are there: seven minutes of two cores.

    Raises:
        CalledProcessError: a module cannot be had, or does not compile.
    """
    build(folder, "k8s.io/kubernetes", VERSION, [f"cmd/{program}" for program in PROGRAMS])


@contextmanager
def kube_server(folder: Path) -> Iterator[KubeServer]:
    """Run the servers in `folder`; the namespace keeps the restricted standard, and gives the documented rights."""
    programs = here().root / ".tocsin" / "kubernetes"
    build_servers(programs)
    with KubeServer(programs, folder / "server") as one:
        one.admin.ask("POST", "/api/v1/namespaces", _NAMESPACE)
        for manifest in read_manifests():
            if manifest["kind"] in _RIGHTS:
                one.admin.ask("POST", collection_of(manifest), manifest)
        yield one


class KubeServer:
    """The servers of one `with` block, and a played node."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder = programs, folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        etcd, self._peers, self._port, self._controllers = free_ports(4)
        self._etcd = f"http://127.0.0.1:{etcd}"
        self.url = f"https://127.0.0.1:{self._port}"
        self.admin = KubeClient(self.url, ADMIN)
        self.node = PlayedNode(self.admin, folder / "node")
        self._logs = _log_server(folder, self.node)

    def __enter__(self) -> KubeServer:
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.node.__exit__()
        self._logs.shutdown()
        self._logs.server_close()
        processes = [*reversed(self._processes.values())]
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Kill the API server, and start it again after the `with` block; all else runs on."""
        api = self._processes[PROGRAMS[0]]
        api.kill()
        api.wait()
        try:
            yield
        finally:
            self._run_api()

    def token_of(self, account: str) -> str:
        asked = self.admin.ask("POST", f"{ACCOUNTS}/{account}/token", {"spec": {}})
        return str(asked["status"]["token"])

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(encoding="utf-8")

    def _start(self) -> None:
        self._folder.mkdir(parents=True)
        threading.Thread(target=self._logs.serve_forever, args=(0.05,), daemon=True).start()
        etcd = shutil.which("etcd")
        assert etcd is not None, "etcd is missing; run: make setup-k8s"
        peers = f"http://127.0.0.1:{self._peers}"
        self._run("etcd", [etcd, f"--data-dir={self._folder / 'etcd'}", f"--listen-client-urls={self._etcd}",
            f"--advertise-client-urls={self._etcd}", f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}", f"--initial-cluster=default={peers}"])  # fmt: skip
        self._api = [str(self._programs / PROGRAMS[0]), *self._api_options()]
        self._run_api()
        self._run(PROGRAMS[1], [str(self._programs / PROGRAMS[1]), *self._controller_options()])
        addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
        endpoints = {"kubeletEndpoint": {"Port": self._logs.server_port}}
        self.admin.ask("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        status = {"addresses": addresses, "daemonEndpoints": endpoints}
        self.admin.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status})
        self.node.__enter__()

    def _run_api(self) -> None:
        self._run(PROGRAMS[0], self._api)
        await_that(lambda: _answers(lambda: self.admin.ask("GET", "/readyz")), 90)

    def _run(self, name: str, command: Sequence[str]) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder)

    def _api_options(self) -> list[str]:
        private, public = _write_keys(self._folder)
        tokens = self._folder / "tokens.csv"
        tokens.write_text(f"{ADMIN},admin,1,system:masters\n", encoding="utf-8")
        return [
            f"--etcd-servers={self._etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._port}",
            f"--cert-dir={self._folder / 'certificates'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-signing-key-file={private}",
            f"--service-account-key-file={public}",
            f"--token-auth-file={tokens}",
            "--authorization-mode=RBAC",
            "--feature-gates=WatchList=false",  # it lets no client watch from now on with Debian's etcd 3.4
            "--kubelet-preferred-address-types=InternalIP",
        ]

    def _controller_options(self) -> list[str]:
        config = write_kubeconfig(self._folder / "controllers.json", self.url, ADMIN)
        return [
            f"--kubeconfig={config}",
            f"--service-account-private-key-file={self._folder / 'account.key'}",
            f"--controllers={_CONTROLLERS}",
            "--leader-elect=false",
            "--bind-address=127.0.0.1",
            f"--secure-port={self._controllers}",
            f"--cert-dir={self._folder / 'controller-certificates'}",
        ]


def write_kubeconfig(file: Path, url: str, token: str) -> Path:
    """Write the login of `token` for programs and for the client of Python."""
    parts = {
        "clusters": [{"name": "x", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "x", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    }
    whole = {"apiVersion": "v1", "kind": "Config", "current-context": "x", **parts}
    file.write_text(json.dumps(whole), encoding="utf-8")
    return file


def _answers(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except (Refused, OSError):
        return False
    return True


def _write_keys(folder: Path) -> tuple[Path, Path]:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private, public = folder / "account.key", folder / "account.pub"
    pem = serialization.Encoding.PEM
    form = serialization.PrivateFormat.TraditionalOpenSSL
    private.write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


def _log_server(folder: Path, node: PlayedNode) -> ThreadingHTTPServer:
    """The part of a kubelet that the API asks for logs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlsplit(self.path)
            pod, query = url.path.split("/")[3], parse_qs(url.query)
            lines, previous = int(query["tailLines"][0]), query.get("previous") == ["true"]
            try:
                code, text = 200, node.log(pod, lines, previous=previous)
            except StopIteration:
                code, text = 400, "is waiting to start"
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    folder.parent.mkdir(parents=True, exist_ok=True)
    certificate, key = write_certificate(folder.parent)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    # Not in the thread that accepts: a connection that says nothing would keep all others waiting.
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server
