"""Adds the routes of the core to the application."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from app.core.api import completions, health, models
from app.core.api.chat import completions as chat
from app.core.api.plain import plain_chats, plain_completions
from app.core.built_in import present_extensions
from app.core.server.http.late_routes import late_routes
from app.core.versions.chain import simulated_version

if TYPE_CHECKING:
    from app.core.api.responder import ServerLoad
    from app.core.base.metrics.instruments import Exposition
    from app.core.extensions import ServerParts
    from app.core.server.flask.application import Understudy
    from app.core.server.http.route import Route
    from app.core.versions.change import Answer
    from config import Settings

TOKENS = ("POST /tokenize", "POST /detokenize")
TOKENIZER_INFO = "GET /tokenizer_info"
GENERATING_PATHS = ("/v1/chat/completions", "/v1/completions")
ADMIN = (
    "GET /admin/config",
    "GET /admin/config/live",
    "POST /admin/config",
    "POST /admin/drain",
)


def reason_for_absence(settings: Settings, path: str) -> str | None:
    """Returns why a server lacks `path` because of its model; None for other paths."""
    paths: set[str] = set()
    if settings.model.task != "generate":
        paths.update(GENERATING_PATHS)
    for extension in present_extensions():
        paths.update(extension.paths_of_other_models(settings))
    if path not in paths:
        return None
    return (
        f"the task of the model {settings.model.model} is {settings.model.task}, and as in vLLM, "
        "only models of other tasks have this route"
    )


def older_routes(parts: ServerParts, routes: Iterable[Route]) -> list[Route]:
    """Returns the routes that the played version has, with its answers."""
    return parts.pipeline.version.routes(routes, partial(_older_route, parts))


def _older_route(parts: ServerParts, route: Route, answers: Sequence[Answer]) -> Route:
    """Returns a route with the answers of another version than the code's."""
    from app.core.versions.new_fields import answers_with_nulls
    from app.core.versions.parsed_streams import parsed_streams
    from app.core.versions.unended_thoughts import unended_thoughts

    played = parts.pipeline.version
    older = [
        *answers,
        *answers_with_nulls(route, played.version),
        *parsed_streams(route.path, played, parts.settings.tools),
        *unended_thoughts(route.path, played, parts.settings.reply),
    ]
    if not older:
        return route
    from app.core.versions.boundary import bounded_route

    return bounded_route(route, older)


def add_model_routes(app: Understudy, parts: ServerParts) -> None:
    """Adds chats, completions, models and tokenization."""
    settings = parts.settings
    pipeline = parts.pipeline
    older = partial(older_routes, parts)
    if settings.model.task == "generate":
        chats = plain_chats(pipeline)
        for extension in parts.extensions:
            chats.others = chats.others or extension.plain_chats(chats)
        texts = plain_completions(pipeline)
        parts.live.watch(chats.refresh)
        parts.live.watch(texts.refresh)
        memos = {"plain chats": chats.known_prompts, "plain prompts": texts.known_prompts}
        app.caches.append(lambda: memos)
        app.add_routes("chat", older(chat.routes(pipeline, chats)))
        app.add_routes("completions", older(completions.routes(pipeline, texts)))
    model_routes = models.routes(pipeline.models, pipeline.identity)
    app.add_routes("models", older(model_routes))
    operations = [*TOKENS]
    if settings.api.enable_tokenizer_info_endpoint:
        operations.append(TOKENIZER_INFO)
    token_routes = late_routes(partial(_token_routes, parts), *operations)
    app.add_routes("tokens", older(token_routes))
    if not pipeline.version.is_of_code:
        # Their answers are errors with the status of a success, which no change concerns.
        others = pipeline.version.routes(_routes_of_other_tasks(parts), lambda route, _: route)
        app.add_routes("other_tasks", others)


def add_operator_routes(
    app: Understudy, parts: ServerParts, load: ServerLoad, exposition: Exposition
) -> None:
    """Adds health, metrics, live settings and the sizes of caches."""

    def is_healthy() -> bool:
        return parts.engine.healthy

    def memory_routes() -> list[Route]:
        from app.core.api.admin import memory_routes

        return memory_routes(app.caches, app.middleware.memory)

    release = simulated_version(parts.settings.api).release
    health_routes = health.health_routes(is_healthy, parts.is_ready, load, release)
    app.add_routes("health", older_routes(parts, health_routes))
    app.add_routes("metrics", health.metrics_routes(exposition))
    app.add_routes("admin", late_routes(partial(_admin_routes, parts), *ADMIN))
    app.add_routes("memory", late_routes(memory_routes, "GET /admin/memory"))


def _routes_of_other_tasks(parts: ServerParts) -> Iterator[Route]:
    """Yields the routes of other tasks than the model's, for versions that have them."""
    from app.core.assembly.other_tasks import TaskRules, routes_of_other_tasks

    if parts.pipeline.version.rules(TaskRules).has_other_tasks:
        reason = partial(reason_for_absence, parts.settings)
        yield from routes_of_other_tasks(reason, parts.pipeline)


def _token_routes(parts: ServerParts) -> list[Route]:
    from app.core.api.tokenize import routes

    return routes(parts.pipeline, parts.settings.api.enable_tokenizer_info_endpoint)


def _admin_routes(parts: ServerParts) -> list[Route]:
    from app.core.api.admin import routes

    return routes(parts.live, parts.engine, parts.body, parts.peers)
