"""Statistics of a server whose model computes; vLLM has no such route."""

from collections.abc import Callable

from app.core.base.metrics.recorder import Figures
from app.core.server.http.context import RequestContext
from app.core.server.http.route import Route, action


def statistics_routes(figures: Callable[[], Figures]) -> list[Route]:
    """Returns the route of a computing model's statistics; vLLM has no such route."""

    def stats(context: RequestContext) -> object:
        """Choices, tokens and mean seconds since the start of this rank, and present choices."""
        present = figures()
        return {
            "requests_served": int(sum(present.finished.values())),
            "total_tokens_generated": int(present.generated),
            "average_response_time": present.e2e.sum / max(1, sum(present.e2e.counts)),
            "queue_length": int(present.waiting),
            "active_requests": int(present.running),
        }

    return [action("GET /stats", stats)]
