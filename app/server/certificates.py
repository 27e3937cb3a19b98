"""The server's certificate: loaded in the arbiter, inherited by the workers, read again when it changes."""

from __future__ import annotations

import os
import ssl
from contextlib import suppress
from typing import Any

from gevent.ssl import SSLSocket
from gunicorn import sock

Stamp = tuple[tuple[int, ...] | None, ...]
"""What tells one version of the files from another; None for one that is not there."""


class CertificateError(Exception):
    """A certificate and its key that cannot be served; the text is one line."""


class ClosingSocket(SSLSocket):  # type: ignore[misc]
    """Says goodbye (close_notify), so that a body that ends with the connection is known to be whole."""

    def close(self) -> None:
        if self._sslobj is not None:
            with suppress(OSError):  # it wants to wait for the client's goodbye, or the client has gone
                self._sslobj.shutdown()
        super().close()


class ServerCertificate:
    """What new connections are secured with; `cfg` is gunicorn's configuration with the files in it.

    CertificateError when they cannot be used. Running connections keep what they began with.
    """

    def __init__(self, cfg: Any) -> None:
        self._cfg = cfg
        self._seen = self._loaded = self._stamp()
        self._context = server_context(cfg)

    def refresh(self) -> bool:
        """Look whether the files have changed; call it about once a second. True when they were loaded.

        They are read when they have not changed since the last look: whoever writes both has time to do it.
        What cannot be used raises CertificateError, once, and the old certificate stays.
        """
        before, self._seen = self._seen, self._stamp()
        if self._seen == self._loaded or self._seen != before:
            return False
        self._loaded = self._seen
        self._context = server_context(self._cfg)
        return True

    def wrap(self, client: Any) -> ssl.SSLSocket:
        """The server's side of a TLS connection, before the handshake. OSError when the client has gone."""
        return self._context.wrap_socket(client, server_side=True, do_handshake_on_connect=False)

    def _stamp(self) -> Stamp:
        """Follows links: Kubernetes swaps a link when it renews a mounted secret."""
        return tuple(_version(path) for path in (self._cfg.certfile, self._cfg.keyfile) if path)


def server_context(cfg: Any) -> ssl.SSLContext:
    """HTTP/1.1 over TLS 1.2 or newer, with gunicorn's other TLS options. CertificateError."""
    check_pair(cfg.certfile, cfg.keyfile)
    context: ssl.SSLContext = sock.ssl_context(cfg)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.sslsocket_class = ClosingSocket
    return context


def check_pair(certfile: str, keyfile: str | None) -> None:
    """CertificateError unless the files are a PEM certificate chain and its key, without a passphrase.

    Without `keyfile` the key is in `certfile`, too.
    """
    both = " and ".join(path for path in (certfile, keyfile) if path)
    for path in filter(None, (certfile, keyfile)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise CertificateError(f"{path} cannot be read: {error.strerror}") from None
    try:
        # Without an answer to its question, OpenSSL would ask the terminal for a passphrase.
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
