"""The files of mTLS as a server's credentials follow them."""

from __future__ import annotations

from pathlib import Path

from services.runtime.identity.tls_files import TlsSource, follow
from tests.fakes.certificates import make_certificates


def test_grpc_is_told_of_certificates_at_a_change_alone(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    source = TlsSource(files["tls_cert"], files["tls_key"], files["tls_ca"])
    fetch = follow(source, source.read())
    assert fetch() is None
    other = make_certificates(tmp_path, name="other")
    other["tls_cert"].replace(files["tls_cert"])
    other["tls_key"].replace(files["tls_key"])
    assert fetch() is not None
    assert fetch() is None
    kept = files["tls_key"].rename(tmp_path / "key.pem")
    assert fetch() is None, "it keeps what it has"
    kept.rename(files["tls_key"])
    assert fetch() is None
