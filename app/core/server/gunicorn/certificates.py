"""The server's certificate: loaded in the arbiter, inherited by the workers, reloaded on a change.

Without files, the server makes a self-signed certificate at its start, and removes it at its end.
"""

import atexit
import ipaddress
import os
import shutil
import socket
import ssl
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from gevent.ssl import SSLSocket
from gunicorn import sock

from app.core.server.gunicorn.errors import CertificateError
from config.files import open_file
from config.settings import ServerSettings

if TYPE_CHECKING:
    import gevent.socket
    from gunicorn.config import Config

CLOCK_TOLERANCE = timedelta(hours=1)
"""Validity before the current time, for clients with slow clocks."""
VALIDITY = timedelta(days=3650)


class ClosingSocket(SSLSocket):  # type: ignore[misc]
    """Sends close_notify before closing, so that clients know that an unframed body is complete."""

    def close(self) -> None:
        """Sends close_notify, and closes the socket."""
        if self._sslobj is not None:
            with suppress(OSError):  # OpenSSL would wait for a close_notify, or the client has gone
                self._sslobj.shutdown()
        super().close()


class ServerCertificate:
    """The TLS context of new connections; gunicorn's configuration `cfg` names the files.

    HTTP/1.1 over TLS 1.2 or newer, with gunicorn's TLS options. Open connections keep their
    certificate.

    Raises:
        CertificateError: the files cannot be used.
    """

    def __init__(self, cfg: "Config") -> None:
        self._cfg = cfg
        self._last_seen = self._file_versions()
        self._load()

    def refresh(self) -> bool:
        """Loads changed files; returns True when it has loaded them. Called about once a second.

        Changed files are loaded one call later, if stable: a renewal has time to write both.

        Raises:
            CertificateError: the changed files cannot be used; the old certificate stays in use.
                Raised once per change.
        """
        previous = self._last_seen
        self._last_seen = self._file_versions()
        if self._last_seen == self._loaded or self._last_seen != previous:
            return False
        self._load()
        return True

    def wrap(self, client: "gevent.socket.socket") -> ssl.SSLSocket:
        """Returns the server side of a TLS connection, before its handshake.

        Raises:
            OSError: the client has disconnected.
        """
        return self._context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)

    def _load(self) -> None:
        self._loaded = self._last_seen
        check_pair(self._cfg.certfile, self._cfg.keyfile)
        context: ssl.SSLContext = sock.ssl_context(self._cfg)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.sslsocket_class = ClosingSocket
        self._context = context

    def _file_versions(self) -> list[tuple[object, ...]]:
        """Returns what identifies the versions of the files.

        Follows links: Kubernetes renews a mounted secret by replacing a link.
        """
        versions: list[tuple[object, ...]] = []
        for path in filter(None, (self._cfg.certfile, self._cfg.keyfile)):
            with suppress(OSError):  # a missing file
                status = os.stat(path)
                versions.append(
                    (path, status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                )
        return versions


def check_pair(certfile: str, keyfile: str | None) -> None:
    """Checks that the files are a PEM certificate chain and its key, without a passphrase.

    Without `keyfile`, the key is in `certfile`.

    Raises:
        CertificateError: the files are not such a pair.
    """
    paths = [path for path in (certfile, keyfile) if path]
    try:
        for path in paths:
            open_file(path, accepts_pipes=False).close()  # OpenSSL reads a device for ever
    except OSError as error:
        raise CertificateError(f"{path} cannot be read: {error.strerror}") from None
    try:
        # Without a `password` (here, an empty one), OpenSSL would prompt for it on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password=bytes)
    except (OSError, ValueError) as error:
        reason = f"must be a certificate and its key in PEM format: {error}"
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            reason = "do not belong together"
        raise CertificateError(f"{' and '.join(paths)} {reason}") from None


class SelfSigned:
    """A private folder with a certificate and its key; the creating process removes it at exit."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="understudy-"))
        self._names: list[str] = []
        atexit.register(_remove_folder, self._folder, os.getpid())

    def pair(self, server: ServerSettings, hosts: Sequence[str]) -> tuple[str, str]:
        """Returns the paths of certificate and key; renews both when the server's names change."""
        certificate = self._folder / "cert.pem"
        key = self._folder / "key.pem"
        names = [
            "localhost",
            "127.0.0.1",
            "::1",
            socket.gethostname(),
            server.pod_name,
            server.pod_ip,
            "" if server.host in ("0.0.0.0", "::") else server.host,
            *hosts,
        ]
        names = list(dict.fromkeys(names))
        if names != self._names:
            certificate_pem, key_pem = make_pair(
                [name for name in names if name and name.isascii()]
            )
            key.touch(mode=0o600)
            key.write_bytes(key_pem)
            certificate.write_bytes(certificate_pem)
            self._names = names
        return str(certificate), str(key)


def _remove_folder(folder: Path, owner_pid: int) -> None:
    if os.getpid() == owner_pid:  # forked workers inherit exit hooks
        shutil.rmtree(folder, ignore_errors=True)


def make_pair(names: list[str]) -> tuple[bytes, bytes]:
    """Returns a self-issued certificate for `names` and its ECDSA P-256 key, both in PEM."""
    from cryptography import x509  # a large library that is seldom needed
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    public_key = key.public_key()
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Understudy")])
    alternative_names: list[x509.GeneralName] = []
    for name in names:
        try:
            alternative_names.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            alternative_names.append(x509.DNSName(name))
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=issuer,
        public_key=public_key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - CLOCK_TOLERANCE,
        not_valid_after=now + VALIDITY,
    )
    for extension, critical in (
        (x509.SubjectAlternativeName(alternative_names), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectKeyIdentifier.from_public_key(public_key), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key), False),
    ):
        builder = builder.add_extension(extension, critical)
    certificate_pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    key_pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate_pem, key_pem
