"""Imports the fast path of chats with a form at the second chat after the compiler of schemas.

The handler of a chat imports the compiler, with pauses. The rest takes a few milliseconds, which
servers with few such chats save.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.core.api.plain import SPECIAL_HEADERS
from app.core.base.caches import LimitedDict

if TYPE_CHECKING:
    from app.core.api.pipeline import RequestPipeline
    from app.core.api.plain import PlainGeneration
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import PendingResponse, Response
    from app.extensions.forms.constraints import FormConstraints
    from app.extensions.forms.plain_chats import Form

FIELDS = (b'"tools"', b'"response_format"')
"""One of these is in the body of every chat with a form."""
FORMS_BYTES = 2 << 20


class LateFormChats:
    """A `PlainHandler` that hands over to `FormChats`."""

    special_headers = SPECIAL_HEADERS

    def __init__(
        self, pipeline: RequestPipeline, schemas: FormConstraints, chats: PlainGeneration
    ) -> None:
        """`chats` answers plain chats, and asks its `others` for further ones."""
        self.forms: LimitedDict[bytes, Form] = LimitedDict(FORMS_BYTES)
        """Known forms by the bytes of their JSON."""
        self._pipeline = pipeline
        self._schemas = schemas
        self._chats = chats
        self._is_first = True

    def recognise(self, body: bytes) -> object | None:
        """Returns the chat in `body`; None for one without a known form."""
        if FIELDS[0] not in body and FIELDS[1] not in body:
            return None
        if not self._schemas.is_loaded:
            return None
        if self._is_first:
            self._is_first = False
            return None
        from app.extensions.forms.plain_chats import FormChats

        form_chats = FormChats(
            self._pipeline, self._chats.known_prompts, schemas=self._schemas, forms=self.forms
        )
        self._pipeline.live.watch(form_chats.refresh)
        self._chats.others = form_chats
        return form_chats.recognise(body)

    def answer(self, context: RequestContext, recognised: Any) -> Response | PendingResponse:
        """Is not called: `FormChats` answers the chats that it recognizes."""
        raise NotImplementedError
