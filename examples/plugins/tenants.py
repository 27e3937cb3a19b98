"""Counts requests by their header X-Tenant, and reports the counts in a header, a metric and a page.

understudy --plugin examples/plugins/tenants.py --tenants-required
curl localhost:8000/admin/tenants
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated

from app.plugins import (
    About,
    ApiError,
    Count,
    Middleware,
    Plugin,
    Position,
    RequestContext,
    Response,
    Route,
    Section,
    ServerParts,
    get,
    json_response,
)

API = 2
VERSION = "1.0"
OTHERS = "others"


class TenantSettings(Section, frozen=True, kw_only=True):
    """Tenants."""

    required: Annotated[
        bool, About("Refuse requests for replies that name no tenant.", live=True)
    ] = False
    most: Annotated[Count, About("Tenants with a count; all others share `others`.")] = 100


class TenantCounter(Middleware):
    """Counts requests for replies, and tells clients the count of their tenant."""

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin
        self.counts: Counter[str] = Counter()

    def begin(self, context: RequestContext) -> None:
        """Counts a request. Raises ApiError 400 if its tenant is missing."""
        if not context.path.startswith("/v1/") or context.method != "POST":
            return
        tenant = context.headers.get("x-tenant", "")
        if not tenant and self._plugin.settings.required:
            raise ApiError(400, "BadRequestError", "The header X-Tenant is missing.", "X-Tenant")
        is_valid = tenant.isalnum() and tenant.isascii()
        has_room = tenant in self.counts or len(self.counts) < self._plugin.settings.most
        self.counts[tenant if is_valid and has_room else OTHERS] += 1

    def end(self, context: RequestContext, response: Response) -> None:
        """Adds the header X-Tenant-Requests."""
        count = self.counts.get(context.headers.get("x-tenant", ""))
        if count:
            response.headers["X-Tenant-Requests"] = str(count)


class Tenants(Plugin):
    """Counts requests by tenant."""

    name = "tenants"
    Settings = TenantSettings

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._counter = TenantCounter(self)

    def keeps_fast_path(self, settings: object) -> bool:
        """Returns whether no request is refused: the general path writes complete errors."""
        return not self.settings.required

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the counter, behind keys and rate limits."""
        return {Position.AUTHENTICATED: [self._counter]}

    def metrics(self) -> Sequence[Callable[[], str]]:
        """Returns the family of counts."""
        return [self._text]

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the page."""
        return {"page": [get("/admin/tenants", self._page)]}

    def _page(self, context: RequestContext) -> Response:
        """Requests by tenant."""
        return json_response(dict(sorted(self._counter.counts.items())))

    def _text(self) -> str:
        lines = [
            "# HELP tenants_requests_total Requests by tenant.",
            "# TYPE tenants_requests_total counter",
        ]
        for tenant, count in sorted(self._counter.counts.items()):
            lines.append(f'tenants_requests_total{{tenant="{tenant}"}} {count}')
        return "\n".join([*lines, ""])


EXTENSION = Tenants
