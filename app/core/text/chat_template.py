"""The chat templates of a tokenizer: renders conversations with them or with a request's template.

A template is an untrusted program. One of a request runs in another process, which can be stopped
(`template_process`). The server's own templates run in this process, until they exceed the limits
of the event loop (`template_bounds`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import msgspec

from app.core.base.clock.pause import SharedWork
from app.core.text.base import (
    PLAIN_CHAT,
    ChatOptions,
    ChatTemplateError,
    Message,
    TemplateOverrunError,
)
from app.core.text.compiled_template import (
    CHANGING,
    TEMPLATES_BYTES,
    ChatTemplateCompiler,
    CompiledTemplate,
    ConversationSize,
    ToolWrappers,
)
from app.core.text.files import DEFAULT_TEMPLATE
from app.core.text.template_environment import json_length

if TYPE_CHECKING:
    from app.core.base.fair_slots import NativeThreads
    from app.core.text.template_protocol import RenderRequest

LONG_CHAT = 20_000
"""Characters above which a conversation is rendered in a native thread: one at a time."""
HUGE_CHAT = 1 << 19
"""Characters above which a conversation waits for its kind only: rendering takes seconds."""
MANY_MESSAGES = 400
"""Messages above which a conversation is rendered in a native thread."""
MAX_CONVERSATIONS = 1024
"""Conversations that may wait for a template of the model that was handed over."""
CHATS_AFTER_OVERRUN = 1_000
"""Conversations that another process renders after a template has exceeded a limit."""

logger = logging.getLogger(__name__)


class RequestTemplateRenderer(Protocol):
    """Renders conversations with the templates of requests, which are not trusted."""

    def render(self, request: RenderRequest) -> str:
        """Returns the prompt.

        Raises:
            ChatTemplateError: the template fails.
        """


class ChatTemplates:
    """The chat templates of one tokenizer, compiled at their first use.

    `sources` are Jinja sources by name (`default`, `tool_use` ...), `special_tokens` variables of
    each, as `bos_token`; `now` is local time; `takes_media`: the model reads more than text.
    `renderer` renders with the templates of requests; by default it is a process of this object.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
        takes_media: bool = True,
        limit_bytes: int = TEMPLATES_BYTES,
        renderer: RequestTemplateRenderer | None = None,
    ) -> None:
        self._sources = sources
        self._trusted_sources = frozenset(sources.values())
        self._special_tokens = special_tokens
        self._now = now
        self._takes_media = takes_media
        if renderer is not None:
            self._renderer = self._own_renderer = renderer
        self.is_time_dependent = any(map(CHANGING.search, sources.values()))
        """True if a template reads the clock or draws random values.

        Equal conversations may then have different prompts.
        """
        self._handed_over: dict[str, int] = {}
        """Conversations that another process renders next, by the source of the template."""
        self._work = SharedWork(time.perf_counter)
        """The work of templates in the event loop."""
        self.tool_wrappers = ToolWrappers()
        self.compiler = ChatTemplateCompiler(
            special_tokens,
            now=now,
            takes_media=takes_media,
            limit_bytes=limit_bytes,
            is_bounded=True,
        )

    def render(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """Returns the prompt of a conversation; a native thread renders a long one."""
        if options is PLAIN_CHAT:
            prompt = self._default.plain(messages)
            if prompt is not None:
                return prompt
        elif options.tools_key is not None:
            prompt = self._plain_with_tools(messages, options)
            if prompt is not None:
                return prompt
        source = self._source(options)
        if source not in self._trusted_sources:
            return self._renderer.render(self._request(source, messages, options))
        if source not in self._handed_over:
            try:
                return self._render_here(source, messages, options)
            except TemplateOverrunError:
                self._hand_over(source)
        return self._render_elsewhere(source, messages, options)

    def _plain_with_tools(self, messages: Sequence[Message], options: ChatOptions) -> str | None:
        with self._work:
            if self._handed_over:
                return None
            return self._with_tools.plain(messages, options, self.tool_wrappers)

    def _render_here(self, source: str, messages: Sequence[Message], options: ChatOptions) -> str:
        template = self.compiler.compile(source)
        if template.is_too_large:
            raise TemplateOverrunError
        length = _json_length(messages, options)
        is_long = length > LONG_CHAT or len(messages) > MANY_MESSAGES
        size = ConversationSize(length, is_long)
        if length >= HUGE_CHAT:
            return self._renderers[1].call(template.render, messages, options, size)
        if is_long:
            return self._renderers[0].call(template.render, messages, options, size)
        with self._work:
            if source in self._handed_over:  # by another conversation, during the wait
                raise TemplateOverrunError
            return template.render(messages, options, size)

    def _hand_over(self, source: str) -> None:
        if source in self._handed_over:
            return
        logger.warning(
            "A chat template of the model is too slow or too large for the event loop: a process of"
            " its own renders the next %d conversations",
            CHATS_AFTER_OVERRUN,
        )
        self._handed_over[source] = CHATS_AFTER_OVERRUN

    def _render_elsewhere(
        self, source: str, messages: Sequence[Message], options: ChatOptions
    ) -> str:
        """Renders with a template that was handed over."""
        try:
            prompt = self._own_renderer.render(self._request(source, messages, options))
        except ChatTemplateError:
            self._count_down(source)
            raise
        self._count_down(source)
        return prompt

    def _count_down(self, source: str) -> None:
        """Counts a rendered conversation.

        A flood of conversations that find no room in the process does not count: it would return
        the template to the event loop within a second.
        """
        left = self._handed_over.pop(source, 0) - 1
        if left > 0:
            self._handed_over[source] = left

    def _request(
        self, source: str, messages: Sequence[Message], options: ChatOptions
    ) -> RenderRequest:
        from app.core.text.template_protocol import RenderRequest  # few requests have templates

        return RenderRequest(
            source=source,
            special_tokens=self._special_tokens,
            takes_media=self._takes_media,
            now=self._now(),
            options=options,
            messages=messages,
        )

    @cached_property
    def _renderers(self) -> tuple[NativeThreads, NativeThreads]:
        """The threads of long conversations, and of huge ones."""
        from app.core.base.fair_slots import NativeThreads  # few conversations are long

        # Templates hold the GIL: more threads would render no more, and delay the event loop.
        return NativeThreads(1), NativeThreads(1)

    @cached_property
    def _renderer(self) -> RequestTemplateRenderer:
        from app.core.text.template_process import TemplateProcess

        return TemplateProcess()

    @cached_property
    def _own_renderer(self) -> RequestTemplateRenderer:
        """Renders with a template of the model that was handed over.

        Neither templates of requests delay it, nor their short queue: all chats may need it.
        """
        from app.core.text.template_process import TemplateProcess

        return TemplateProcess(max_waiting=MAX_CONVERSATIONS)

    @cached_property
    def _default(self) -> CompiledTemplate:
        return self.compiled(PLAIN_CHAT)

    @cached_property
    def _with_tools(self) -> CompiledTemplate:
        return self.compiled(ChatOptions(tools=()))

    def compiled(self, options: ChatOptions) -> CompiledTemplate:
        """Returns the template that renders with `options`."""
        return self.compiler.compile(self._source(options))

    def _source(self, options: ChatOptions) -> str:
        """Returns the request's template, else `tool_use` for tools, else `default`.

        A request names a template, or has its source.
        """
        if options.chat_template is not None:
            return self._sources.get(options.chat_template, options.chat_template)
        if options.tools is not None and "tool_use" in self._sources:
            return self._sources["tool_use"]
        try:
            return self._sources[DEFAULT_TEMPLATE]
        except KeyError:
            raise ChatTemplateError(
                "Neither the tokenizer nor the request has a chat template."
            ) from None


def _json_length(messages: Sequence[Message], options: ChatOptions) -> int:
    """Returns the length of a request's texts as JSON, which may be an estimate.

    Not for values that a template makes: a few lists inside of each other are gigabytes of JSON.
    """
    inputs = messages, options.tools, options.documents, options.chat_template_kwargs
    try:
        return len(msgspec.json.encode(inputs))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return json_length(inputs, HUGE_CHAT)
