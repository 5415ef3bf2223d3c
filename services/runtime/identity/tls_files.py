"""The files of mTLS, read again when they change."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.errors import Code, HeadwayError
from services.runtime.identity.private_file import read_private
from services.runtime.logs import get_logger

if TYPE_CHECKING:
    import grpc

_HANDSHAKES_BEGIN = 0.1  # seconds


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The contents of a certificate, its key, and the authority that is trusted (PEM)."""

    certificate: bytes
    key: bytes
    authority: bytes


class TlsSource:
    """Three files that may be replaced at any time."""

    def __init__(self, certificate: Path, key: Path, authority: Path) -> None:
        self._certificate, self._key, self._authority = certificate, key, authority
        self._seen: Sequence[tuple[int, int, int]] = ()
        self._files: TlsFiles | None = None

    def read(self) -> TlsFiles:
        """Return the contents; FAILED_PRECONDITION if a file cannot be read or is not private."""
        stamps = self._stamps()
        if self._files is None or stamps != self._seen:
            self._files = TlsFiles(
                _read(self._certificate),
                read_private(self._key, "--tls-key"),
                _read(self._authority),
            )
            self._seen = stamps
        return self._files

    def _stamps(self) -> Sequence[tuple[int, int, int]]:
        """Return what changes with a file's contents; a missing file is an error of ``read``."""
        stamps = []
        for path in (self._certificate, self._key, self._authority):
            try:
                stat = path.stat()
            except OSError as error:
                raise _unreadable(path, error) from error
            stamps.append((stat.st_ino, stat.st_mtime_ns, stat.st_size))
        return stamps


def tls_options(place: Path) -> Mapping[str, Path]:
    """Return the options of a service with the certificate in a folder."""
    files = {"tls_cert": "cert.pem", "tls_key": "key.pem", "tls_ca": "ca.pem"}
    if (place / "clients.pem").exists():
        files["tls_client_ca"] = "clients.pem"
    return {option: (place / file).absolute() for option, file in files.items()}


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """Return the credentials of a caller."""
    import grpc  # slow to import; whoever reads the files alone needs none of it

    return grpc.ssl_channel_credentials(files.authority, files.key, files.certificate)


def server_credentials(source: TlsSource, *, asks_callers: bool = True) -> grpc.ServerCredentials:
    """Return credentials that ask callers for a certificate, if so told, and follow the files.

    gRPC asks for the files at every handshake. It keeps what it has if they do not fit together.
    """
    import grpc

    given = source.read()
    return grpc.dynamic_ssl_server_credentials(
        _configuration(given),
        follow(source, given),  # type: ignore[arg-type]  # None is in grpc's documentation
        require_client_authentication=asks_callers,
    )


def follow(
    source: TlsSource, given: TlsFiles
) -> Callable[[], grpc.ServerCertificateConfiguration | None]:
    """Return what gRPC asks at every handshake: the files where they have changed, else None.

    gRPC's core frees what a change replaces, though a handshake that has asked just before may not
    have begun to use it (grpc/grpc#36693). So only a change answers, and after a pause: whoever
    asks meanwhile waits for the core's lock.
    """

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        try:
            files = source.read()
        except HeadwayError as error:
            get_logger().warning("tls_files_unreadable", error=error.message)
            return None
        if files == given:
            return None
        given = files
        time.sleep(_HANDSHAKES_BEGIN)  # in a thread of gRPC's core
        return _configuration(files)

    return fetch


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    import grpc

    pair = (files.key, files.certificate)
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=files.authority)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> HeadwayError:
    message = f"cannot read {path} ({error.strerror}): see --tls-cert, -key and -ca"
    return HeadwayError(Code.FAILED_PRECONDITION, message)
