"""Host headers: which names belong to this server, against DNS rebinding (docs/access.md).

A page of evil.example may point that name at this machine. To the browser, page and server then
have one origin, so the page may read every answer. Only the Host header shows the name. A name is
safe if no stranger can publish an address for it in the public DNS.
"""

import re
import socket
from collections.abc import Callable, Iterable
from ipaddress import ip_address

from app.core.base.clock.pause import wait_off_hub

ANY = "*"
"""Item of `allowed-hosts` that accepts every name."""
PRIVATE_SUFFIXES = (".svc", ".cluster.local", ".local", ".internal", ".localhost")
"""Ends of names that no public DNS resolves: Kubernetes, multicast DNS, private networks."""
_HOST_HEADER = re.compile(
    r"(?:\[(?P<ipv6>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[\w-]{1,63}(?:\.[\w-]{1,63})*)\.?)"
    r"(?::[0-9]{0,5})?",
    re.ASCII,
)


class HostNames:
    """The names under which clients may reach the control routes of this server."""

    def __init__(
        self,
        names: Iterable[str],
        machine_name: Callable[[], str] = socket.gethostname,
        qualified_name: Callable[[], str] = socket.getfqdn,
    ) -> None:
        """`names` are host names and addresses, with or without a port; `*` stands for every name.

        `qualified_name` may wait for the DNS. It is called once, when a request needs it.
        """
        self._names = frozenset(host_of(name) for name in names if name)
        self._accepts_any = ANY in self._names
        self._machine_name = host_of(machine_name())
        self._lookup_qualified_name = qualified_name
        self._qualified_name: str | None = None
        """Fully qualified name of this machine; None until a request needs it."""

    def accepts(self, header: str) -> bool:
        """Returns True for a Host header with a name of this server, or one that cannot be rebound.

        Clients other than browsers may omit the header, so an empty one is accepted. May wait for
        the DNS.
        """
        if self._accepts_any or not header:
            return True
        match = _HOST_HEADER.fullmatch(header)
        if match is None:
            return False
        if match["ipv6"] is not None:
            return is_address(match["ipv6"])
        name = match["name"].lower()
        if "." not in name or name.endswith(PRIVATE_SUFFIXES):
            return True
        return name in self._names or is_address(name) or self._is_machine(name)

    def _is_machine(self, name: str) -> bool:
        """Returns True for the name of this machine, with or without its domain.

        The DNS may take seconds to answer, so this name is looked up once, and only for a name that
        begins with this machine's.
        """
        if name == self._machine_name:
            return True
        if name.partition(".")[0] != self._machine_name.partition(".")[0]:
            return False
        if self._qualified_name is None:
            try:
                self._qualified_name = host_of(wait_off_hub(self._lookup_qualified_name))
            except UnicodeError:  # a machine's name that no DNS can have
                self._qualified_name = self._machine_name
        return name == self._qualified_name


def host_of(netloc: str) -> str:
    """Returns the name or address of a Host header, without port and brackets, if it has any."""
    if netloc.startswith("["):
        return netloc[1:].partition("]")[0].lower()
    name = netloc
    if netloc.count(":") == 1:
        name = netloc.partition(":")[0]
    return name.lower().rstrip(".")


def is_address(host: str) -> bool:
    """Returns True for an IPv4 or IPv6 address."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
