"""A development authority, and the certificates that it issues.

A folder holds two authorities: one signs the services of a cluster, the other its clients, so
that no client's certificate opens a port between services.

    authority/peers.pem, peers.key         signs services
    authority/clients.pem, clients.key     signs clients
    NAME/cert.pem, key.pem                 a process's own
    NAME/ca.pem                            what it trusts: the services' authority
    NAME/clients.pem                       of a gateway: the clients' authority
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from headway.errors import Code, HeadwayError, invalid
from services.runtime.identity.private_file import read_private
from services.runtime.identity.roles import ROLE_DOMAIN, ServiceRole, server_name, spiffe_id
from services.runtime.identity.tls_files import tls_options

AUTHORITY_DAYS = 3650
DAYS = 365
_PEERS, _CLIENTS = "peers", "clients"
_LOCAL = ("localhost", "127.0.0.1", "::1")
_BACKDATED = timedelta(hours=1)
"""Hosts' clocks may differ."""


def make_authorities(folder: Path, *, days: int = AUTHORITY_DAYS) -> None:
    """Make both authorities; FAILED_PRECONDITION if there are some."""
    for name in (_PEERS, _CLIENTS):
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(f"headway {name}")
        builder = (
            _builder(subject, key.public_key(), days)
            .issuer_name(subject)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
        )
        place = folder / "authority"
        _write(place / f"{name}.key", _key_pem(key), is_private=True)
        _write(place / f"{name}.pem", _pem(builder.sign(key, hashes.SHA256())))


def issue(
    folder: Path,
    role: ServiceRole,
    name: str,
    *,
    cluster: str = "default",
    hosts: Iterable[str] = (),
    days: int = DAYS,
    place: Path | None = None,
) -> Mapping[str, Path]:
    """Issue a certificate into ``folder/name`` or ``place``; return its service's options.

    ``hosts``: names and addresses by which callers from outside know it. Services find each
    other by role. FAILED_PRECONDITION without an authority, or if the certificate is there.
    """
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", name) or name == "authority":
        raise invalid("name", name, "1 to 64 letters, digits, dots, dashes or underscores")
    signs = _CLIENTS if role is ServiceRole.CLIENT else _PEERS
    authority, authority_key = _authority(folder, signs)
    key = ec.generate_private_key(ec.SECP256R1())
    alternative = x509.SubjectAlternativeName(_names(cluster, role, name, hosts))
    certificate = (
        _builder(_name(name), key.public_key(), days)
        .issuer_name(authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(_purposes(role), critical=False)
        .add_extension(alternative, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    place = place or folder / name
    _write(place / "key.pem", _key_pem(key), is_private=True)
    _write(place / "cert.pem", _pem(certificate))
    _write(place / "ca.pem", (folder / "authority" / f"{_PEERS}.pem").read_bytes())
    if role is ServiceRole.GATEWAY:
        _write(place / "clients.pem", (folder / "authority" / f"{_CLIENTS}.pem").read_bytes())
    return tls_options(place)


def keep_certificates(
    folder: Path,
    *,
    cluster: str = "default",
    hosts: Mapping[ServiceRole, Iterable[str]] = MappingProxyType({}),
    days: int = DAYS,
) -> list[str]:
    """Make what is missing: authorities, and a certificate per role under the role's name.

    A certificate is renewed in the last third of its days, and if it lacks a name; it keeps the
    hosts that it has. A folder of certificates without their authority is taken as it is:
    FAILED_PRECONDITION if one is missing. Return the names that were issued.
    """
    has_authority = (folder / "authority" / f"{_PEERS}.key").exists()
    if not has_authority and not any((folder / role / "cert.pem").exists() for role in ServiceRole):
        make_authorities(folder)  # a volume begins as an empty folder
        has_authority = True
    made = []
    for role in ServiceRole:
        place, known_as = folder / role, [*hosts.get(role, ())]
        if (place / "cert.pem").exists():
            carried = _carried(place / "cert.pem")
            is_complete = set(_names(cluster, role, role, known_as)) <= set(carried)
            is_fresh = days_left(place / "cert.pem") > days / 3
            if not has_authority or (is_complete and is_fresh):
                continue
            known_as += _hosts(carried)
        fresh = place / ".new"
        shutil.rmtree(fresh, ignore_errors=True)
        issue(folder, role, role, cluster=cluster, hosts=known_as, days=days, place=fresh)
        for path in sorted(fresh.iterdir()):
            path.replace(place / path.name)
        fresh.rmdir()
        made.append(str(role))
    return made


def _carried(certificate: Path) -> list[x509.GeneralName]:
    """Return the names in a certificate."""
    read = x509.load_pem_x509_certificate(certificate.read_bytes())
    return [*read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value]


def _hosts(names: Iterable[x509.GeneralName]) -> list[str]:
    """Return the hosts among the names of a certificate, without the name of its role."""
    hosts = [each for each in names if isinstance(each, x509.DNSName | x509.IPAddress)]
    return [text for each in hosts if not (text := str(each.value)).endswith(ROLE_DOMAIN)]


def days_left(certificate: Path) -> float:
    """Return the days until a certificate expires."""
    read = x509.load_pem_x509_certificate(certificate.read_bytes())
    return (read.not_valid_after_utc - datetime.now(UTC)) / timedelta(days=1)


def _authority(folder: Path, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    place = folder / "authority"
    key_pem = read_private(place / f"{name}.key", f"`headway certs init {folder}`")
    key = serialization.load_pem_private_key(key_pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return x509.load_pem_x509_certificate((place / f"{name}.pem").read_bytes()), key


def _builder(
    subject: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64])])


def _names(
    cluster: str, role: ServiceRole, name: str, hosts: Iterable[str]
) -> list[x509.GeneralName]:
    """Return who it is, the name that services check, and the hosts that other callers check."""
    names: list[x509.GeneralName] = [
        x509.UniformResourceIdentifier(spiffe_id(cluster, role, name)),
    ]
    if role is ServiceRole.CLIENT:
        return names
    names.append(x509.DNSName(server_name(cluster, role)))
    for host in dict.fromkeys((*_LOCAL, *hosts)):
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return names


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _purposes(role: ServiceRole) -> x509.ExtendedKeyUsage:
    calls, serves = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
    return x509.ExtendedKeyUsage([calls] if role is ServiceRole.CLIENT else [calls, serves])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, contents: bytes, *, is_private: bool = False) -> None:
    """Write a new file; FAILED_PRECONDITION if it is there, or its folder cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = 0o600 if is_private else 0o644
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(contents)
    except FileExistsError as error:
        message = f"{path} is there: remove it first, or give another folder or name"
        raise HeadwayError(Code.FAILED_PRECONDITION, message) from error
    except OSError as error:
        message = f"cannot write {path} ({error.strerror})"
        raise HeadwayError(Code.FAILED_PRECONDITION, message) from error
