"""A self-signed certificate, made at the server's start and removed at its end."""

from __future__ import annotations

import atexit
import ipaddress
import os
import shutil
import socket
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from config import Settings

COMMON_NAME = "Understudy"
EARLIER = timedelta(hours=1)
"""Validity before the current time, for clients with slow clocks."""
VALID = timedelta(days=3650)
EVERYWHERE = ("0.0.0.0", "::")


class SelfSigned:
    """A private folder with a certificate and its key; the creating process removes the folder at exit."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="understudy-"))
        self._names: list[str] = []
        atexit.register(_remove, self._folder, os.getpid())

    def pair(self, settings: Settings) -> tuple[str, str]:
        """Returns the paths of certificate and key; makes new ones when the server's names have changed."""
        certificate, key = self._folder / "cert.pem", self._folder / "key.pem"
        names = names_of(settings)
        if names != self._names:
            made, secret = make_pair(names)
            key.touch(mode=0o600)
            key.write_bytes(secret)
            certificate.write_bytes(made)
            self._names = names
        return str(certificate), str(key)


def names_of(settings: Settings) -> list[str]:
    """Returns the names and addresses that clients may use for this server, each once."""
    server = settings.server
    own = ["localhost", "127.0.0.1", "::1", socket.gethostname()]
    told = [server.pod_name, server.pod_ip, "" if server.host in EVERYWHERE else server.host]
    names = dict.fromkeys([*own, *told, *settings.tls.self_signed_names])
    return [name for name in names if name and name.isascii()]


def make_pair(names: list[str], now: datetime | None = None) -> tuple[bytes, bytes]:
    """Returns a self-issued certificate for `names` and its ECDSA P-256 key, both in PEM."""
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key()
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, COMMON_NAME)])
    subject_key = x509.SubjectKeyIdentifier.from_public_key(public)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_signs_handshakes(), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(subject_key, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(public), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256())
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), secret


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _signs_handshakes() -> x509.KeyUsage:
    """Allows signatures only: an elliptic curve key has no other use in TLS."""
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # forked workers inherit exit hooks
        shutil.rmtree(folder, ignore_errors=True)
