"""HTTPS."""

from dataclasses import dataclass

from config.fields import setting
from config.rules import no_empty_items


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """HTTPS."""

    ssl_certfile: str | None = setting(
        None, path=True, help="PEM certificate chain, read again when it changes; needs ssl-keyfile."
    )
    ssl_keyfile: str | None = setting(None, path=True, help="PEM private key; needs ssl-certfile.")
    self_signed_certs: bool = setting(False, help="Make a certificate at the start and serve with it.")
    self_signed_names: tuple[str, ...] = setting(
        (),
        help="Further host names and addresses of the self-signed certificate; localhost, this host's name "
        "and the pod's are always there.",
        rule=no_empty_items(),
    )
