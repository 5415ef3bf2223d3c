"""Certificates that do not serve: whose, which file, and what to do, in one sentence.

Of a handshake that fails, gRPC says to the caller only that the server cannot be reached. The
caller then shakes hands once more here, with OpenSSL, which names the reason.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

from services.runtime.config import ServiceConfig, host_and_port
from services.runtime.identity.roles import ServiceRole, server_name

_PATIENCE = 1.0  # seconds; an address that does not answer must not delay the next attempt
_NOT_YET_VALID, _EXPIRED, _NAMES_ANOTHER = 9, 10, 62  # OpenSSL's X509_V_ERR_…


def own_fault(config: ServiceConfig) -> str:
    """Return why a service's own certificate would be refused by all others; "" if it would not.

    It shakes hands with itself, in memory.
    """
    if config.tls_cert is None:
        return ""
    ours = f"our certificate {config.tls_cert}"
    name = server_name(config.cluster, ServiceRole(config.service_name()))
    try:
        _shake_hands_in_memory(config, name)
    except ssl.SSLCertVerificationError as error:
        return f"{ours} {_verdict(error, config, name)}"
    except (OSError, ValueError) as error:
        key, authority = config.tls_key, config.tls_ca
        return f"{ours}, the key {key} and the authority {authority} do not fit together ({error})"
    return ""


async def peer_fault(address: str, config: ServiceConfig, role: ServiceRole) -> str:
    """Return why TLS with the server at ``address`` fails; "" if something else is wrong."""
    if config.tls_cert is None:
        return ""
    name = server_name(config.cluster, role)
    try:
        context = _context(config, ssl.PROTOCOL_TLS_CLIENT)
    except (OSError, ValueError) as error:
        return (
            f"our certificate {config.tls_cert} and key {config.tls_key} cannot be used ({error})"
        )
    try:
        refuses_us = await asyncio.to_thread(_is_refused, address, context, name)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate {_verdict(error, config, name)}"
    except ssl.SSLError as error:
        reason = error.reason or "unknown"
        return f"it does not speak TLS as we do ({reason}): give it --tls-cert, -key and -ca"
    except (OSError, ValueError):
        return ""
    if refuses_us:
        return (
            f"it refuses our certificate {config.tls_cert}: see whether it has expired, and "
            "whether its authority is in the other side's --tls-ca"
        )
    return ""


def _is_refused(address: str, context: ssl.SSLContext, name: str) -> bool:
    """Shake hands; return whether the server then hangs up instead of greeting."""
    host, port = host_and_port("address", address)
    with (
        socket.create_connection((host.strip("[]"), port), _PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=name) as encrypted,
    ):
        try:
            return not encrypted.recv(1)
        except TimeoutError:
            return False
        except OSError:  # an alert, or a reset
            return True


def _context(config: ServiceConfig, protocol: int) -> ssl.SSLContext:
    assert config.tls_cert is not None
    context = ssl.SSLContext(protocol)
    context.load_verify_locations(config.tls_ca)
    context.load_cert_chain(config.tls_cert, config.tls_key)
    context.set_alpn_protocols(["h2"])
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _shake_hands_in_memory(config: ServiceConfig, name: str) -> None:
    """Play both sides; SSLCertVerificationError if one would refuse the other."""
    caller = _context(config, ssl.PROTOCOL_TLS_CLIENT)
    server = _context(config, ssl.PROTOCOL_TLS_SERVER)
    to_caller, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (
        caller.wrap_bio(to_caller, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_caller, server_side=True),
    )
    for side in (*sides, *sides):  # hello, certificate; certificate, end
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()


def _verdict(error: ssl.SSLCertVerificationError, config: ServiceConfig, name: str) -> str:
    if error.verify_code in (_NOT_YET_VALID, _EXPIRED):
        what, way_out = "is out of its days", "renew it with `headway certs all DIR`"
    elif error.verify_code == _NAMES_ANOTHER:
        what, way_out = f"does not name {name}", "issue one for this role and cluster"
    else:
        what = f"is not of an authority in {config.tls_ca}"
        way_out = "issue it with one of these, or add its authority to the file"
    return f"{what} ({error.verify_message}): {way_out}"
