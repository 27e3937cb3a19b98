"""Routes below /admin that change a server: settings of all its ranks, scripts, draining."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from app.engine.core.lifecycle import Operations
from app.engine.core.sequence import EngineClient
from app.serving.api.admin.reports import action
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import ApiError, bad_request, malformed, unavailable
from app.serving.http.response import Response
from app.serving.http.route import Route, post
from config import ConfigError
from config.fake_metrics import FakeMetricsError, merged
from config.live import LiveSettings

if TYPE_CHECKING:
    from urllib3 import PoolManager

    from app.serving.scripts.script_set import ScriptSet

FAKES = "fake-metrics"
"""The only setting that may be given in parts."""
CHECK = "/admin/config?check=true"
TIMEOUT_S = 5.0
PASSED_ON = ("authorization", "x-admin-key", "content-type")
"""Headers that are passed on to other ranks."""


def routes(
    live: LiveSettings, lifecycle: Operations, service: EngineClient, body: BodyLimits, siblings: PeerRanks
) -> list[Route]:
    """Returns the routes. A request with `?ranks=all` concerns all ranks, and is answered by rank."""

    def config(context: RequestContext) -> object:
        """All settings by name; secrets masked."""
        return siblings.answers(context, live.current.dump())

    def live_help(context: RequestContext) -> object:
        """The settings that may change, with their meaning."""
        return {row.name: row.help for row in live.current.table.rows if row.about.live}

    def change(context: RequestContext) -> object:
        """Changes some settings, all or none; the answer has all settings. `?check=true` changes nothing."""
        data = body.read(context)
        try:
            values = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise malformed(f"body: {error}", "body") from None
        try:
            if FAKES in values:
                values[FAKES] = merged(live.current.metrics.fake_metrics, values[FAKES])
            changed = live.changed(values)
        except (ConfigError, FakeMetricsError) as error:
            raise bad_request(f"{error}.") from None
        if context.argument("check") == "true":
            return changed.dump()
        if concerns_all(context):  # all ranks must agree before any changes
            siblings.ask(context.method, CHECK, context.headers, data)
        return siblings.answers(context, live.change(values).dump(), data)

    def drain(context: RequestContext) -> object:
        """Stops admitting requests and reports not ready; running requests continue."""
        lifecycle.drain()
        counts = {"running": service.running, "waiting": service.waiting}
        return siblings.answers(context, {"status": "draining", **counts})

    return [
        action("GET /admin/config", config),
        action("GET /admin/config/live", live_help),
        action("POST /admin/config", change),
        action("POST /admin/drain", drain),
    ]


def fake_metrics_routes(body: BodyLimits, live: LiveSettings) -> list[Route]:
    """POST /fake_metrics (simulator.md 2.1); POST /admin/config changes them, too."""

    def change(context: RequestContext) -> Response:
        """Changes some keys of the fake metrics: 204, or 400 and no change for any wrong key."""
        update = body.read(context)
        try:
            live.change({FAKES: merged(live.current.metrics.fake_metrics, update)})
        except ValueError as error:
            raise bad_request(str(error), FAKES) from None
        return Response(b"", 204)

    return [post("/fake_metrics", change)]


def concerns_all(context: RequestContext) -> bool:
    return context.argument("ranks") == "all"


class PeerRanks:
    """The other ranks of this server; requests that concern all ranks reach them over the loopback.

    `others` are rank and base URL of each.
    """

    def __init__(self, own: int, others: Sequence[tuple[int, str]]) -> None:
        self.own = own
        self._others = others
        self._pool: PoolManager | None = None
        if others:
            from urllib3 import PoolManager  # a slow import, and most servers have one rank

            self._pool = PoolManager(timeout=TIMEOUT_S, retries=False, cert_reqs="CERT_NONE")

    def answers(self, context: RequestContext, own: object, body: bytes = b"") -> object:
        """Returns `own`, our answer to a request; with `?ranks=all` every rank's answer, by rank.

        Raises ApiError like `ask`.
        """
        if not concerns_all(context):
            return own
        others = self.ask(context.method, context.path, context.headers, body)
        return dict(sorted({str(self.own): own, **others}.items()))

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> dict[str, Any]:
        """Returns the JSON answers of the other ranks, by rank.

        ApiError with the status and message of the first rank that refuses; 503 for one that does not answer.
        """
        kept = {name: headers[name] for name in PASSED_ON if name in headers}
        return {str(rank): self._ask(rank, method, url + path, kept, body) for rank, url in self._others}

    def _ask(self, rank: int, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Any:
        from urllib3.exceptions import HTTPError

        assert self._pool is not None
        try:
            answer = self._pool.request(method, url, headers=headers, body=body)
            told = answer.json()
        except (HTTPError, ValueError) as error:
            raise unavailable(f"Rank {rank} does not answer: {error}") from None
        if answer.status == 200:
            return told
        wrong = told.get("error") if isinstance(told, dict) else None
        known = wrong if isinstance(wrong, dict) else {"message": f"status {answer.status}"}
        raise ApiError(answer.status, known.get("type", "Error"), f"Rank {rank}: {known.get('message')}")


def script_routes(book: ScriptSet, siblings: PeerRanks) -> list[Route]:
    """Returns routes to read and restart the report of `book`; `?ranks=all` is for all ranks."""

    def report(context: RequestContext) -> object:
        """Number of answers of each rule of each script."""
        return siblings.answers(context, book.report())

    def begin_anew(context: RequestContext) -> object:
        """Restarts the counts of all rules, for the next test."""
        book.restart()
        return siblings.answers(context, book.report())

    return [action("GET /admin/script", report), action("DELETE /admin/script", begin_anew)]
