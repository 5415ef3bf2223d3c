"""What the actuator needs of a Kubernetes API server, on loopback: the scale subresource."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import yaml

TOKEN = "the-service-account"


class ApiServer:
    """Deployments and their replicas; who has no token, or asks for something else, is refused."""

    def __init__(self, namespace: str, replicas: dict[str, int]) -> None:
        self.namespace = namespace
        self.replicas = replicas
        self.patches: list[tuple[str, str, Any]] = []
        self.url = ""

    def answer(
        self, method: str, path: str, token: str, kind: str, body: str
    ) -> tuple[int, dict[str, Any]]:
        if token != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        begins = f"/apis/apps/v1/namespaces/{self.namespace}/deployments/"
        name, _, rest = path.removeprefix(begins).partition("/")
        if not path.startswith(begins) or rest != "scale":
            return _status(403, "Forbidden")
        if name not in self.replicas:
            return _status(404, "NotFound")
        if method == "PATCH":
            if kind not in (
                "application/merge-patch+json",
                "application/strategic-merge-patch+json",
            ):
                return _status(415, "UnsupportedMediaType")
            patch = json.loads(body)
            self.patches.append((name, kind, patch))
            self.replicas[name] = patch["spec"]["replicas"]
        return 200, self._scale(name)

    def _scale(self, name: str) -> dict[str, Any]:
        spec = {"replicas": self.replicas[name]} if self.replicas[name] else {}
        return {
            "kind": "Scale",
            "apiVersion": "autoscaling/v1",
            "metadata": {"name": name, "namespace": self.namespace, "resourceVersion": "1"},
            "spec": spec,  # the real one leaves a 0 out, too
            "status": {"replicas": self.replicas[name], "selector": f"app={name}"},
        }


def _status(code: int, reason: str) -> tuple[int, dict[str, Any]]:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return code, {**status, "reason": reason, "code": code, "message": reason}


@contextmanager
def api_server(
    namespace: str, replicas: dict[str, int], certificates: Mapping[str, Path] | None = None
) -> Iterator[ApiServer]:
    """Listen on a free loopback port, with TLS where there are certificates."""
    server = ApiServer(namespace, replicas)

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            code, reply = server.answer(
                self.command,
                self.path.partition("?")[0],
                self.headers.get("Authorization", ""),
                self.headers.get("Content-Type", ""),
                self.rfile.read(length).decode(),
            )
            text = json.dumps(reply).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = _serve  # noqa: N815 (the base class asks for these)

        def log_message(self, *args: object) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_port}"
    if certificates is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates["tls_cert"], certificates["tls_key"])
        http.socket = context.wrap_socket(http.socket, server_side=True)
        server.url = server.url.replace("http", "https")
    thread = Thread(target=http.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def write_kubeconfig(path: Path, url: str, namespace: str, token: str = TOKEN) -> None:
    """A kubeconfig for this server."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": namespace}}
        ],
        "current-context": "x",
    }
    path.write_text(yaml.safe_dump(config))
