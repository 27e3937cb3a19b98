"""HTTPS."""

import re
from dataclasses import dataclass

from config.fields import setting
from config.rules import Rule, no_empty_items

_HOST_NAME = re.compile(r"[\w.*:-]{1,253}", re.ASCII)


def _host_names() -> Rule:
    """As certificates have them: names beyond ASCII in their xn-- form, addresses without brackets."""
    return Rule(
        "must only have ASCII host names and addresses",
        lambda names, room: all(_HOST_NAME.fullmatch(name) for name in names),
    )


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
        rule=(no_empty_items(), _host_names()),
    )

    @property
    def enabled(self) -> bool:
        """The server speaks HTTPS."""
        return bool(self.ssl_certfile or self.self_signed_certs)
