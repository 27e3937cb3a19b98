"""Counts requests by their header X-Tenant: in a header of each answer, in a metric family, and on
a page.

python -m app --plugin examples/plugins/tenants.py --tenants-required
curl localhost:8000/admin/tenants
"""

from collections import Counter
from typing import Annotated

from app.plugins import (
    About,
    ApiError,
    Count,
    MetricsHook,
    Middleware,
    PluginHost,
    RequestContext,
    Response,
    Route,
    Section,
    get,
    hookimpl,
    json_response,
)

API = 1
VERSION = "1.0"
OTHERS = "others"


class Settings(Section, frozen=True, kw_only=True):
    """Tenants."""

    required: Annotated[
        bool, About("Refuse requests for replies that name no tenant.", live=True)
    ] = False
    most: Annotated[
        Count, About("Tenants that are counted each for itself; the rest is `others`.")
    ] = 100


class Tenants(Middleware):
    """One for all hooks: `host.one` sees to that."""

    def __init__(self, host: PluginHost) -> None:
        self._host = host
        self.counts: Counter[str] = Counter()

    def begin(self, context: RequestContext) -> None:
        if not context.path.startswith("/v1/") or context.method != "POST":
            return
        tenant = context.headers.get("x-tenant", "")
        if not tenant and self._host.settings.required:
            raise ApiError(400, "BadRequestError", "The header X-Tenant is missing.", "X-Tenant")
        known = tenant.isalnum() and tenant.isascii()
        if known and (tenant in self.counts or len(self.counts) < self._host.settings.most):
            self.counts[tenant] += 1
        else:
            self.counts[OTHERS] += 1

    def end(self, context: RequestContext, response: Response) -> None:
        if count := self.counts.get(context.headers.get("x-tenant", "")):
            response.headers["X-Tenant-Requests"] = str(count)

    def page(self, context: RequestContext) -> Response:
        """Requests by tenant."""
        return json_response(dict(sorted(self.counts.items())))

    def text(self) -> str:
        lines = [
            f'tenants_requests_total{{tenant="{name}"}} {n}'
            for name, n in sorted(self.counts.items())
        ]
        head = [
            "# HELP tenants_requests_total Requests by tenant.",
            "# TYPE tenants_requests_total counter",
        ]
        return "\n".join([*head, *lines, ""])


@hookimpl
def middleware(host: PluginHost) -> Middleware:
    return host.one(Tenants)


@hookimpl
def metrics(host: PluginHost) -> MetricsHook:
    return host.one(Tenants).text


@hookimpl
def routes(host: PluginHost) -> list[Route]:
    return [get("/admin/tenants", host.one(Tenants).page)]
