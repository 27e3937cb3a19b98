"""A change of a release of vLLM, as it is undone to play an older version.

The code plays the newest vLLM. The file `releases/v0_33.py` beside this one lists what vLLM 0.33
changed in the core; that of an extension has the changes of its routes. A server that plays 0.32
undoes these changes, one that plays 0.31 also those of `v0_32.py`, and so on
(`app.core.versions.chain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError

Event = tuple[str, dict[str, Any]]
"""Name of a server-sent event, empty without one, and its data, which a function may modify."""


class Absent(Struct, frozen=True, kw_only=True):
    """Names that older versions lack, beyond the routes and fields of classes in history.json."""

    fields: tuple[str, ...] = ()
    """Fields of structs, such as "ElasticStatus.phase": requests ignore, answers omit them."""
    kept: tuple[str, ...] = ()
    """Fields that encoding keeps, because another form of the change gives them another name."""
    nulls: tuple[str, ...] = ()
    """Fields of requests that older versions have, but where null is an error there."""
    labels: tuple[str, ...] = ()
    """Labels of vllm:cache_config_info, such as "prefix_match_unit"."""


class Rules(Struct, frozen=True):
    """Values of a struct of rules in older versions; its defaults hold for the newest one."""

    kind: str
    """Full name of the struct, which is imported when its owner asks for it."""
    values: JsonObject | Callable[[], JsonObject]
    """The values, or a function that imports what they need."""


class Answer(Struct, frozen=True, kw_only=True):
    """Functions from the answers of newer versions to older answers, for some paths.

    Without `only`, plain requests to these paths take the general way, unless only failures differ.
    """

    paths: tuple[str, ...]
    edit: Callable[[Any], None] | None = None
    """Modifies a decoded answer, or the data of an event of a stream."""
    whole: Callable[[Any, JsonObject], object] | None = None
    """Gets the decoded answer and the decoded request; returns a new answer, or None if it has
    modified the given one."""
    empty: bool = False
    """Successes have no body."""
    events: Callable[[JsonObject], Callable[[Event], Iterable[Event]]] | None = None
    """Gets the decoded request; returns a function from an event of the stream to older events."""
    failure: Callable[[ApiError, Any], ApiError | None] | None = None
    """Gets an error and the decoded request; returns the error of older versions, None for the
    same. Errors in streams are passed, too."""
    since: str = "0.0"
    """Release that brought what the change took away; earlier versions do not have it."""
    only: Callable[[JsonObject], bool] | None = None
    """Returns whether a request's answer differs; false for every plain request."""


class Reading(Struct, frozen=True, kw_only=True):
    """A function that older versions apply to requests before they are validated.

    It may modify the decoded body, where a field had another name or meaning, or raise ApiError,
    where older versions refuse the request.
    """

    paths: tuple[str, ...]
    read: Callable[[JsonObject], None]


class Default(Struct, frozen=True, kw_only=True):
    """A default of an option that vLLM's code determines, so that no generator reads it."""

    option: str
    before: str
    after: str


Form = Absent | Rules | Answer | Reading | Default


class Change(Struct, frozen=True, kw_only=True):
    """Effect of one release on clients, operators or the scheduler, in two sentences."""

    area: str
    """Heading in docs/versions.md."""
    before: str
    """Behavior of versions before the release."""
    after: str
    """Behavior since the release."""
    forms: tuple[Form, ...] = ()
    """How older versions differ; empty where nothing here depends on it."""
    routes: tuple[str, ...] = ()
    """Paths of the clients that it concerns, where `forms` have none; empty for every server."""
    options: tuple[str, ...] = ()
    """Options, without dashes, of the servers that it concerns, `model` for every server; empty if
    it concerns requests alone."""
