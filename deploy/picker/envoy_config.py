"""``envoy.yaml`` with other ports and endpoints, and without the picker for comparisons."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

_FILE = Path(__file__).parent / "envoy.yaml"
_PORTS = {"admin": 9901, "clients": 8080, "picked": 8081, "picker": 9002}
_ALONE = """
  - name: alone
    type: STATIC
    connect_timeout: 1s
    lb_policy: {policy}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        common_http_protocol_options: {{idle_timeout: 2s}}
        explicit_http_config: {{http_protocol_options: {{}}}}
    load_assignment:
      cluster_name: alone
      endpoints:
      - lb_endpoints:
{listed}"""
_BY_SESSION = f"{18 * ' '}hash_policy: [{{header: {{header_name: x-session-id}}}}]"
_ENDPOINTS = re.compile(r"(?: +- endpoint: .*port_value: 800\d}}}\n)+")


def envoy_config(ports: Mapping[str, int], endpoints: Sequence[int], policy: str = "picker") -> str:
    """Return a configuration; ``ports`` as in ``_PORTS``.

    ``policy``: ``picker``, or Envoy's own ``LEAST_REQUEST``, ``ROUND_ROBIN`` or ``RING_HASH``, the
    last by the header ``x-session-id``.
    """
    text = _FILE.read_text("utf-8")
    for name, written in _PORTS.items():
        text = text.replace(f"port_value: {written}}}", f"port_value: {ports[name]}}}")
    listed = "".join(
        "        - endpoint: {address: {socket_address: "
        f"{{address: 127.0.0.1, port_value: {port}}}}}}}\n"
        for port in endpoints
    )
    text = _ENDPOINTS.sub(listed, text)
    if policy != "picker":  # the outer listener alone
        text = text.replace("cluster: picked_or_not", f"cluster: alone\n{_BY_SESSION}", 1)
        text += _ALONE.format(policy=policy, listed=listed)
    return text
