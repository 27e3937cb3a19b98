"""Errors of the server process."""


class CertificateError(Exception):
    """The certificate and its key cannot be served; the text is one line."""
