"""A server that only tokenizes and renders: `vllm launch render`."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.cli import main
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.middleware.stack import Middleware
from config.declaration import COMMAND, UsageError

RENDER = "render"
"""The component of vLLM that the command `launch` can start."""
PATHS = frozenset(
    [
        "/health",
        "/health/ready",
        "/ready",
        "/ping",
        "/version",
        "/metrics",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
    ]
)
"""Routes of a render service besides rendering, and its inverse."""
ENDINGS = ("/render", "/derender")


class RenderOnly(Middleware):
    """Answers 404 to requests for routes that a render service does not have."""

    def begin(self, context: RequestContext) -> Response | None:
        """Returns vLLM's answer for an unknown path, or None for a path of the service."""
        path = context.path
        if context.route is not None:
            path = context.route.path
        if path in PATHS or path.endswith(ENDINGS):
            return None
        return json_response({"detail": "Not Found"}, 404)


def launch(argv: Sequence[str]) -> int:
    """Starts a component of vLLM, with the command line of `serve`. Returns the exit status.

    Raises:
        UsageError: The component is not `render`.
    """
    if argv[:1] in (["-h"], ["--help"]):
        print(f"usage: {COMMAND} launch render [MODEL] [--option value ...]\n")
        print("Start a server that only tokenizes and renders prompts: docs/serve.md.")
        return 0
    if argv[:1] != [RENDER]:
        raise UsageError(
            f"the launch command supports only the {RENDER} component; use launch {RENDER} MODEL"
        )
    return main(["serve", *argv[1:], "--render-only", "--enable-scale-out"])
