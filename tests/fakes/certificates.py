"""Certificates for mTLS, made when a test runs."""

from __future__ import annotations

import subprocess
from pathlib import Path


def make_certificates(folder: Path) -> dict[str, Path]:
    """An authority, and a certificate of its for 127.0.0.1."""
    folder.mkdir()

    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=folder, check=True, capture_output=True)

    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    subject = ("-subj", "/CN=headway-test")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, "-keyout",
            "ca.key", "-out", "ca.pem")  # fmt: skip
    openssl("req", "-newkey", "rsa:2048", "-nodes", *subject, "-keyout", "key.pem", "-out", "csr")
    openssl("x509", "-req", "-in", "csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", "extensions", "-out", "cert.pem")  # fmt: skip
    return {
        "tls_ca": folder / "ca.pem",
        "tls_cert": folder / "cert.pem",
        "tls_key": folder / "key.pem",
    }
