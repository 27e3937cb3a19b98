"""Answers of other releases of vLLM than the code plays.

The code of the core is the newest vLLM. The modules in `releases` describe how chats, completions
and tokenization differed before each release; other extensions have such folders for their own
routes. `families` has the metrics of older releases. `new_families` and `new_fields` have what a
release has added that is newer than the code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from config.vllm.names import read_names
from config.vllm.version import DESCRIBED, is_after_described

if TYPE_CHECKING:
    from app.core.base.metrics.instruments import Families
    from app.core.server.http.route import Route
    from app.core.versions.change import Answer


class PastReleases(Extension):
    """Renders the metrics of older releases; `app.core.versions.chain` reads its changes."""

    name = "past_releases"

    def older_route(self, route: Route, answers: Sequence[Answer]) -> Route:
        """Returns the route with the answers of the release that the server plays."""
        answers = [*answers, *self._answers_with_new_fields(route)]
        if not answers:
            return route
        from app.extensions.past_releases.boundary import bounded_route

        return bounded_route(route, answers)

    def _answers_with_new_fields(self, route: Route) -> Iterator[Answer]:
        if not self._new_fields:
            return
        from app.extensions.past_releases.new_fields import answer_with_nulls

        yield from answer_with_nulls(route, self._new_fields)

    @cached_property
    def _new_fields(self) -> Mapping[str, Sequence[str]]:
        """Fields by class that the code, which plays the last described version, lacks."""
        played = self.parts.pipeline.version
        if not is_after_described(played.version):
            return {}
        from app.extensions.past_releases.new_fields import new_optional_fields

        return new_optional_fields(read_names(), played.release, DESCRIBED[-1])

    def engine_metrics(self, families: Families) -> Families:
        """Returns the families of the release that the server plays."""
        played = self.parts.pipeline.version
        if played.version.name in DESCRIBED:
            return families
        from app.extensions.past_releases.families import PastFamilies
        from config.vllm.history import read_history

        return PastFamilies(families, read_history(), played.release).render
