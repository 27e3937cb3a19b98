"""Refuses control requests from foreign web pages: start with `ForeignPages` (docs/access.md).

A browser sends "simple" requests from any page to any server; CORS only protects the answer. A page
could pause an engine on localhost, or set its keys. A page whose host name resolves to this machine
(DNS rebinding) could read the answers, too. GET requests are refused like others: some
change the state (SGLang's /flush_cache), and the time of an answer reveals its size.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from app.core.protocol.decoding import is_json
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, forbidden
from app.core.server.middleware.control_routes import (
    ADMIN,
    CONSOLE,
    CONTROL,
    OPERATOR_PREFIXES,
)
from app.core.server.middleware.hosts import ANY, HostNames, host_of
from app.core.server.middleware.stack import Middleware
from config.settings import AccessSettings

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
"""Methods of requests without a body."""
TRUSTED_SITES = ("same-origin", "none")
"""Trusted values of Sec-Fetch-Site: a page of this server, or direct input by the user."""
MAX_QUOTED_LENGTH = 100
"""Most characters of a Host header in an error message."""


class ForeignPages(Middleware):
    """Allows control to scripts, the server's pages, and origins that `allowed-origins` names.

    Where no key protects a control route, its requests must also name this server as their Host.
    """

    concerns_plain = False
    route_paths = CONTROL

    def __init__(
        self,
        access: AccessSettings,
        needs_key: Callable[[str], bool],
        server_names: Iterable[str] = (),
    ) -> None:
        """`server_names` extend `allowed-hosts`; empty ones are ignored.

        `needs_key` returns True if requests for a path need a key now (`ApiKeys.needs_key`).
        """
        self._needs_key = needs_key
        self._hosts = HostNames((*access.allowed_hosts, *server_names))
        self._page_hosts = frozenset(map(host_of, access.allowed_hosts))
        self._origins = frozenset(access.allowed_origins) - {ANY}

    def begin(self, context: RequestContext) -> None:
        """Checks a control request.

        Raises:
            ApiError: 403 for a foreign page or an unknown host; 415 for a body that is not JSON.
        """
        assert context.route is not None
        path = context.route.path
        if not self._is_keyed(path) and not self._hosts.accepts(context.host):
            raise forbidden(
                f"The Host header {context.host[:MAX_QUOTED_LENGTH]!r} is not a name of this "
                "server or one of its allowed-hosts. Add the name to --allowed-hosts "
                "(SIM_ALLOWED_HOSTS), or set an API key or admin key."
            )
        # A link of another page may open the console, whose files show nothing themselves. A frame
        # of another page is no link: clicks in it could be lured.
        is_tab = context.headers.get("sec-fetch-dest") == "document"
        if context.method == "OPTIONS" or (is_tab and path.startswith(CONSOLE)):
            return
        if self._is_foreign(context):
            raise forbidden("Pages from other origins cannot send this request.")
        if context.method in SAFE_METHODS:
            return
        is_operator_path = path.startswith(OPERATOR_PREFIXES)
        if is_operator_path and _has_body(context) and not is_json(context.content_type):
            raise ApiError(
                415, "Unsupported Media Type", "The content type must be application/json."
            )

    def _is_keyed(self, path: str) -> bool:
        """Returns True if requests for `path` need a key, which no page of a stranger has.

        The console's files need none, but show nothing without the key of /admin.
        """
        if path.startswith(CONSOLE):
            path = ADMIN
        return self._needs_key(path)

    def _is_foreign(self, context: RequestContext) -> bool:
        if context.headers.get("origin") in self._origins:
            return False
        return is_foreign_page(context.headers, context.host, self._page_hosts)


def is_foreign_page(
    headers: Mapping[str, str], host: str, page_hosts: Collection[str] = ()
) -> bool:
    """Returns whether the page of another origin has sent a request for `host`.

    Pages of `page_hosts` are not foreign.
    """
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site not in TRUSTED_SITES
    origin = headers.get("origin")
    if origin is None:
        return False
    netloc = origin.partition("://")[2].lower()
    is_same = netloc == host.lower() or host_of(netloc) in page_hosts
    return not netloc or not is_same


def _has_body(context: RequestContext) -> bool:
    headers = context.headers
    if "content-type" in headers or "transfer-encoding" in headers:
        return True
    return headers.get("content-length", "0") != "0"
