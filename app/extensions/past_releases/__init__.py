"""Answers of other releases of vLLM than the code plays.

The code of the core is the newest vLLM. The modules in `releases` describe how chats, completions
and tokenization differed before each release; other extensions have such folders for their own
routes. `families` has the metrics of older releases. `new_families` and `new_fields` have what a
release has added that is newer than the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position
from vllm_facts.version import DESCRIBED

if TYPE_CHECKING:
    from app.core.base.metrics.instruments import Families
    from app.core.server.http.route import Route
    from app.core.server.middleware.stack import Middleware
    from app.core.versions.change import Answer


class PastReleases(Extension):
    """Renders the metrics of older releases; `app.core.versions.chain` reads its changes."""

    name = "past_releases"

    def older_route(self, route: Route, answers: Sequence[Answer]) -> Route:
        """Returns the route with the answers of the release that the server plays."""
        played = self.parts.pipeline.version
        if played.version.is_new:
            from app.extensions.past_releases.new_fields import answers_with_nulls

            answers = [*answers, *answers_with_nulls(route, played.version)]
        from app.extensions.past_releases.parsed_streams import parsed_streams

        answers = [*answers, *parsed_streams(route.path, played, self.parts.settings)]
        if not answers:
            return route
        from app.extensions.past_releases.boundary import bounded_route

        return bounded_route(route, answers)

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns routes that only older releases have."""
        played = self.parts.pipeline.version
        if played.version.name in DESCRIBED:
            return {}
        from app.extensions.past_releases.other_tasks import TaskRules, routes_of_other_tasks

        if not played.rules(TaskRules).has_other_tasks:
            return {}
        return {self.name: [*routes_of_other_tasks(self.parts.settings, self.parts.pipeline)]}

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns what takes headers from errors, for releases that any browser may call."""
        played = self.parts.pipeline.version
        if played.version.name in DESCRIBED:
            return {}
        from app.extensions.past_releases.origins import OriginRules, UnopenedErrors

        return {Position.OUTSIDE: (UnopenedErrors(played.rules(OriginRules)),)}

    def engine_metrics(self, families: Families) -> Families:
        """Returns the families of the release that the server plays."""
        played = self.parts.pipeline.version
        if played.version.name in DESCRIBED:
            return families
        from app.extensions.past_releases.families import FamilyRules, PastFamilies
        from vllm_facts.history import read_history

        rules = played.rules(FamilyRules)
        return PastFamilies(families, read_history(), played.release, rules).render
