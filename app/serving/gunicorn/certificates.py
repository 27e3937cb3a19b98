"""The server's certificate: loaded in the arbiter, inherited by the workers, reloaded when it changes."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from typing import Any

from gevent.ssl import SSLSocket
from gunicorn import sock

Stamp = tuple[tuple[int, ...] | None, ...]
"""Version of the files, from `os.stat`; None for a missing file."""


class CertificateError(Exception):
    """The certificate and its key cannot be served; the text is one line."""


class ClosingSocket(SSLSocket):  # type: ignore[misc]
    """Sends close_notify before closing: the client then knows that an unframed body is complete."""

    def close(self) -> None:
        if self._sslobj is not None:
            with suppress(OSError):  # OpenSSL would wait for a close_notify, or the client has gone
                self._sslobj.shutdown()
        super().close()


class ServerCertificate:
    """The TLS context of new connections; `cfg` is gunicorn's configuration, which names the files.

    Raises CertificateError when the files cannot be used. Open connections keep their certificate.
    """

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg
        self._seen = self._loaded = self._stamp()
        self._context = server_context(cfg)

    def refresh(self) -> bool:
        """Loads changed files; True when new ones were loaded. Called about once a second.

        Changed files are loaded one call later, if stable: a renewal has time to write both. Unusable files
        raise CertificateError, once, and the old certificate stays.
        """
        before, self._seen = self._seen, self._stamp()
        if self._seen == self._loaded or self._seen != before:
            return False
        self._loaded = self._seen
        self._context = server_context(self._cfg)
        return True

    def wrap(self, client: Any) -> ssl.SSLSocket:
        """Returns the server side of a TLS connection, before its handshake. OSError: the client has gone."""
        return self._context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)

    def _stamp(self) -> Stamp:
        """Follows links: Kubernetes renews a mounted secret by replacing a link."""
        return tuple(_version(path) for path in (self._cfg.certfile, self._cfg.keyfile) if path)


def server_context(cfg: Any) -> ssl.SSLContext:
    """Builds a context for HTTP/1.1 over TLS 1.2 or newer, with gunicorn's TLS options. CertificateError."""
    check_pair(cfg.certfile, cfg.keyfile)
    context: ssl.SSLContext = sock.ssl_context(cfg)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.sslsocket_class = ClosingSocket
    return context


def check_pair(certfile: str, keyfile: str | None) -> None:
    """Raises CertificateError unless the files are a PEM certificate chain and its key, without a passphrase.

    Without `keyfile`, the key is in `certfile`.
    """
    both = " and ".join(path for path in (certfile, keyfile) if path)
    for path in filter(None, (certfile, keyfile)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise CertificateError(f"{path} cannot be read: {error.strerror}") from None
    try:
        # Without the `password` callback, OpenSSL would prompt for a passphrase on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password=lambda: b"")
    except (OSError, ValueError) as error:
        if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
            raise CertificateError(f"{both} do not belong together") from None
        raise CertificateError(f"{both} are no certificate with its key in PEM form: {error}") from None


def _version(path: str) -> tuple[int, ...] | None:
    try:
        at = os.stat(path)
    except OSError:
        return None
    return at.st_dev, at.st_ino, at.st_mtime_ns, at.st_size
