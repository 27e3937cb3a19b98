"""Statistics of a server whose model computes; vLLM has no such route."""

from collections.abc import Callable

from app.base.metrics.recorder import Figures
from app.serving.api.admin.server import action
from app.serving.http.context import RequestContext
from app.serving.http.route import Route


def statistics_routes(figures: Callable[[], Figures]) -> list[Route]:
    """Returns the route of the statistics, which `figures` returns."""

    def stats(context: RequestContext) -> object:
        """Choices, tokens and mean seconds since the start of this rank, and choices of now."""
        now = figures()
        return {
            "requests_served": int(sum(now.finished.values())),
            "total_tokens_generated": int(now.generated),
            "average_response_time": now.e2e.sum / max(1, sum(now.e2e.counts)),
            "queue_length": int(now.waiting),
            "active_requests": int(now.running),
        }

    return [action("GET /stats", stats)]
