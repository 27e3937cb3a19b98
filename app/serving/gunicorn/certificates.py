"""The server's certificate: loaded in the arbiter, inherited by the workers, reloaded when it
changes.

Without files, the server makes a self-signed one at its start, and removes it at its end.
"""

import atexit
import ipaddress
import os
import shutil
import socket
import ssl
import tempfile
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gevent.ssl import SSLSocket
from gunicorn import sock

from config import Settings

if TYPE_CHECKING:
    from gevent.socket import socket as GeventSocket
    from gunicorn.config import Config

EARLIER = timedelta(hours=1)
"""Validity before the current time, for clients with slow clocks."""
VALID = timedelta(days=3650)


class CertificateError(Exception):
    """The certificate and its key cannot be served; the text is one line."""


class ClosingSocket(SSLSocket):  # type: ignore[misc]
    """Sends close_notify before closing:

    the client then knows that an unframed body is complete.
    """

    def close(self) -> None:
        if self._sslobj is not None:
            with suppress(OSError):  # OpenSSL would wait for a close_notify, or the client has gone
                self._sslobj.shutdown()
        super().close()


class ServerCertificate:
    """The TLS context of new connections; `cfg` is gunicorn's configuration, which names the files.

    HTTP/1.1 over TLS 1.2 or newer, with gunicorn's TLS options. Raises CertificateError when the
    files cannot be used. Open connections keep their certificate.
    """

    def __init__(self, cfg: "Config") -> None:
        self._cfg = cfg
        self._seen = self._stamp()
        self._load()

    def refresh(self) -> bool:
        """Loads changed files; True when new ones were loaded. Called about once a second.

        Changed files are loaded one call later, if stable: a renewal has time to write both.
        Unusable files raise CertificateError, once, and the old certificate stays.
        """
        before, self._seen = self._seen, self._stamp()
        if self._seen == self._loaded or self._seen != before:
            return False
        self._load()
        return True

    def wrap(self, client: "GeventSocket") -> ssl.SSLSocket:
        """Returns the server side of a TLS connection, before its handshake.

        OSError: the client has gone.
        """
        return self._context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)

    def _load(self) -> None:
        self._loaded = self._seen
        check_pair(self._cfg.certfile, self._cfg.keyfile)
        context: ssl.SSLContext = sock.ssl_context(self._cfg)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.sslsocket_class = ClosingSocket
        self._context = context

    def _stamp(self) -> list[tuple[object, ...]]:
        """Versions of the files.

        Follows links: Kubernetes renews a mounted secret by replacing a link.
        """
        stamp: list[tuple[object, ...]] = []
        for path in filter(None, (self._cfg.certfile, self._cfg.keyfile)):
            with suppress(OSError):  # a missing file
                at = os.stat(path)
                stamp.append((path, at.st_dev, at.st_ino, at.st_mtime_ns, at.st_size))
        return stamp


def check_pair(certfile: str, keyfile: str | None) -> None:
    """Raises CertificateError unless the files are a PEM certificate chain and its key, without a
    passphrase.

    Without `keyfile`, the key is in `certfile`.
    """
    paths = [path for path in (certfile, keyfile) if path]
    try:
        for path in paths:
            open(path, "rb").close()
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from None
    try:
        # Without the `password` callback, OpenSSL would prompt for a passphrase on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            certfile, keyfile, password=lambda: b""
        )
    except (OSError, ValueError) as error:
        fault = f"are no certificate with its key in PEM form: {error}"
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            fault = "do not belong together"
        raise CertificateError(f"{' and '.join(paths)} {fault}") from None


class SelfSigned:
    """A private folder with a certificate and its key; the creating process removes the folder at
    exit.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="understudy-"))
        self._names: list[str] = []
        owner = os.getpid()

        def remove() -> None:
            if os.getpid() == owner:  # forked workers inherit exit hooks
                shutil.rmtree(self._folder, ignore_errors=True)

        atexit.register(remove)

    def pair(self, settings: Settings) -> tuple[str, str]:
        """Returns the paths of certificate and key; makes new ones when the server's names have
        changed.
        """
        certificate, key = self._folder / "cert.pem", self._folder / "key.pem"
        server = settings.server
        host = "" if server.host in ("0.0.0.0", "::") else server.host
        names = [
            "localhost",
            "127.0.0.1",
            "::1",
            socket.gethostname(),
            server.pod_name,
            server.pod_ip,
            host,
        ]
        names = list(dict.fromkeys([*names, *settings.access.named_hosts]))
        if names != self._names:
            made, secret = make_pair([name for name in names if name and name.isascii()])
            key.touch(mode=0o600)
            key.write_bytes(secret)
            certificate.write_bytes(made)
            self._names = names
        return str(certificate), str(key)


def make_pair(names: list[str]) -> tuple[bytes, bytes]:
    """Returns a self-issued certificate for `names` and its ECDSA P-256 key, both in PEM."""
    from cryptography import x509  # a large library that is seldom needed
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    public = key.public_key()
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Understudy")])
    called: list[x509.GeneralName] = []
    for name in names:
        try:
            called.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            called.append(x509.DNSName(name))
    serial = x509.random_serial_number()
    builder = x509.CertificateBuilder(issuer, issuer, public, serial, now - EARLIER, now + VALID)
    for extension, critical in (
        (x509.SubjectAlternativeName(called), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(public), False),
    ):
        builder = builder.add_extension(extension, critical)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM), secret
