"""Compiles chat templates, and renders conversations with them. This module needs no event loop."""

import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime
from typing import TypeAlias

import jinja2
from msgspec import Struct
from msgspec.structs import replace

from app.core.base.caches import LimitedDict
from app.core.text.base import (
    PLAIN_CHAT,
    ChatOptions,
    ChatTemplateError,
    Message,
    TemplateOverrunError,
)
from app.core.text.conversation import (
    PLAIN_ROLES,
    ContentFormat,
    Conversation,
    developer_as_system,
    parse_messages,
    starts_with_billing_header,
)
from app.core.text.template_analysis import detect_content_format, wraps_content
from app.core.text.template_bounds import BoundedContext, BoundedEnvironment
from app.core.text.template_environment import TemplateEnvironment

MAX_SOURCE_CHARACTERS = 30_000
"""Maximum length of a template in the event loop; public ones have up to 19,000 characters."""
TEMPLATES_BYTES = 8 << 20
"""Memory limit of compiled templates."""
COMPILED_BYTES = 8_000
"""Maximum memory of a compiled template without its source, in bytes; measured."""
CHARACTER_BYTES = 6
"""Maximum memory of each character of a template's source, in bytes; measured."""
WRAPPERS_BYTES = 4 << 20
"""Memory limit of the texts around messages beside tools."""
WRAPPER_BYTES = 500
"""Memory of such texts beside their characters."""
WRAPPER_CHARACTER_BYTES = 4
"""Maximum memory of a character of a text."""
RESERVED = frozenset({"conversation", "messages", "tokenizer", "model_config"})
"""Names that a request's `chat_template_kwargs` must not set."""
IGNORED = ("chat_template", "tokenize")
"""Names in `chat_template_kwargs` that have no effect."""
CHANGING = re.compile("strftime_now|lipsum|random")
"""Names in a template that may give equal conversations different prompts."""
END_MARK = "END_OF_WHAT_TO_CONTINUE "
"""Mark after the final message, to find and cut the text that the template adds behind it."""


Wrapper: TypeAlias = tuple[str, str]
"""The texts before and after the content of a single message."""


class ToolWrappers(LimitedDict[tuple[str, bytes], Wrapper]):
    """Texts around a single message by its role and the tools, within a limit of memory."""

    def __init__(self, limit_bytes: int = WRAPPERS_BYTES) -> None:
        super().__init__(limit_bytes)

    def learn(self, key: tuple[str, bytes], wrapper: Wrapper) -> None:
        """Remembers the texts around a message."""
        head, tail = wrapper
        text_bytes = WRAPPER_CHARACTER_BYTES * (len(head) + len(tail))
        self.add(key, wrapper, WRAPPER_BYTES + len(key[1]) + text_bytes)


class ConversationSize(Struct, frozen=True):
    """The size of a conversation as JSON, in characters; a long one has a native thread."""

    characters: int = 0
    is_long: bool = False


SHORT_CONVERSATION = ConversationSize()


class CompiledTemplate(Struct, frozen=True):
    """A compiled chat template."""

    template: jinja2.Template
    variables: Mapping[str, object]
    content_format: ContentFormat
    has_developer_role: bool
    takes_media: bool
    size_bytes: int
    wraps_content: bool
    """The template puts constant texts around the content of a single message.

    See `template_analysis.wraps_content`.
    """
    is_too_large: bool = False
    """The template is too large for the event loop; it cannot render."""
    wrappers: dict[str, Wrapper | None] = {}
    """These texts by role, learned at first use; None for a role with content printed twice or
    never.
    """

    def render(
        self,
        messages: Sequence[Message],
        options: ChatOptions,
        size: ConversationSize = SHORT_CONVERSATION,
    ) -> str:
        """Returns the prompt of a conversation; `size` sets the limits of the event loop.

        Raises:
            ChatTemplateError: with the template's reason.
            TemplateOverrunError: the template exceeds a limit of the event loop.
        """
        if options.continue_final_message and options.add_generation_prompt:
            raise ChatTemplateError(
                "continue_final_message and add_generation_prompt are not compatible. "
                "Use continue_final_message when you want the model to continue the final message, "
                "and add_generation_prompt when you want to add a header that will prompt it to "
                "start a new assistant message instead."
            )
        conversation = parse_messages(messages, self.content_format, self.takes_media)
        if not self.has_developer_role and not options.keeps_developers:
            conversation = developer_as_system(conversation)
        variables = {**self.variables, **_variables(options)}
        if not options.continue_final_message:
            return self._run(conversation, variables, size)
        final_text, marked = _mark_final_text(conversation)
        rendered = self._run(marked, variables, size)
        mark = END_MARK.strip()
        if mark not in rendered or final_text.strip() not in rendered:
            raise ChatTemplateError(
                "continue_final_message: the template does not render the final message."
            )
        prompt = rendered[: rendered.rindex(mark)]
        if rendered.startswith(END_MARK, len(prompt)):
            return prompt
        # A template that strips messages has removed the mark's blank, and would have removed the
        # text's.
        return prompt.rstrip()

    def plain(
        self,
        messages: Sequence[Message],
        options: ChatOptions = PLAIN_CHAT,
        tool_wrappers: ToolWrappers | None = None,
    ) -> str | None:
        """Returns the prompt of a single message under options that are plain but for the tools.

        Options with a `tools_key` need `tool_wrappers`. Returns None if the template has to run.
        """
        if not self.wraps_content or len(messages) != 1 or len(messages[0]) != 2:
            return None
        role = messages[0].get("role")
        content = messages[0].get("content")
        if not isinstance(role, str) or role not in PLAIN_ROLES or not isinstance(content, str):
            return None
        if role == "system" and starts_with_billing_header(content):
            return None
        if options.tools_key is not None and tool_wrappers is not None:
            key = (role, options.tools_key)
            wrapper = tool_wrappers.get(key)
            if wrapper is None:
                wrapper = self._wrapper(role, options)
                if wrapper is not None:
                    tool_wrappers.learn(key, wrapper)
        else:
            if role not in self.wrappers:
                self.wrappers[role] = self._wrapper(role, PLAIN_CHAT)
            wrapper = self.wrappers[role]
        if wrapper is None:
            return None
        return content.join(wrapper)

    def _wrapper(self, role: str, options: ChatOptions) -> Wrapper | None:
        """Returns the texts around the content of a single message.

        Returns None for content that is printed twice or never, and beyond a limit of the event
        loop.
        """
        variables = {**self.variables, "tools": options.tools, "add_generation_prompt": True}
        size = ConversationSize(len(options.tools_key or ""))
        try:
            rendered = self._run([{"role": role, "content": END_MARK}], variables, size)
        except TemplateOverrunError:
            return None
        head, *tails = rendered.split(END_MARK)
        if len(tails) != 1:
            return None
        return head, tails[0]

    def _run(
        self,
        conversation: Conversation,
        variables: dict[str, object],
        size: ConversationSize = SHORT_CONVERSATION,
    ) -> str:
        # `Template.render` would walk over the chained globals of the environment each time.
        template = self.template
        variables["messages"] = conversation
        context = template.environment.context_class(
            template.environment, variables, template.name, template.blocks
        )
        if isinstance(context, BoundedContext):
            context.allow(size.characters, size.is_long)
        try:
            return template.environment.concat(template.root_render_func(context))
        except TemplateOverrunError:
            raise
        except MemoryError as error:
            raise ChatTemplateError("The chat template requires too much memory.") from error
        except Exception as error:  # a template is a program, and may fail in any way
            raise ChatTemplateError(
                f"The chat template rejected the conversation: {error}"
            ) from error


class ChatTemplateCompiler:
    """Compiles chat templates, and keeps them within a limit of memory.

    `special_tokens` are variables of each template, as `bos_token`; `now` is local time;
    `takes_media`: the model reads more than text. `is_bounded`: the templates keep the limits of
    the event loop.
    """

    def __init__(
        self,
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime],
        takes_media: bool,
        limit_bytes: int = TEMPLATES_BYTES,
        is_bounded: bool = False,
    ) -> None:
        self._special_tokens = special_tokens
        self._takes_media = takes_media
        self._is_bounded = is_bounded
        self._environment = BoundedEnvironment(now) if is_bounded else TemplateEnvironment(now)
        self.compiled: LimitedDict[str, CompiledTemplate] = LimitedDict(limit_bytes)

    def compile(self, source: str) -> CompiledTemplate:
        """Compiles a template, or returns a known one.

        Raises:
            ChatTemplateError: the template is invalid.
        """
        template = self.compiled.get(source)
        if template is None:
            template = self._compile(source)
            self.compiled.add(source, template, template.size_bytes)
        return template

    def _compile(self, source: str) -> CompiledTemplate:
        try:
            return self._translate(source)
        except TemplateOverrunError:
            return self._too_large()
        except (
            # Errors of Jinja, and errors of Python's compiler in the code that Jinja generates.
            jinja2.TemplateError,
            SyntaxError,
            RecursionError,
            MemoryError,
            OverflowError,
            ValueError,
        ) as error:
            if self._is_bounded and isinstance(error, SyntaxError | RecursionError):
                return self._too_large()  # without what the bounds add, it may compile
            raise ChatTemplateError(f"The chat template does not compile: {error}") from error

    def _too_large(self) -> CompiledTemplate:
        return replace(self._translate(""), is_too_large=True)

    def _translate(self, source: str) -> CompiledTemplate:
        if self._is_bounded and len(source) > MAX_SOURCE_CHARACTERS:
            raise TemplateOverrunError
        tree = self._environment.parse(source)
        content_format = detect_content_format(tree)
        is_wrapping = wraps_content(tree) and CHANGING.search(source) is None
        self._environment.prepare(tree)
        template = self._environment.from_string(tree)
        variables = {**template.globals, "tools": None, "documents": None, **self._special_tokens}
        has_developer_role = re.search("""["']developer["']""", source) is not None
        size_bytes = COMPILED_BYTES + CHARACTER_BYTES * len(source)
        return CompiledTemplate(
            template=template,
            variables=variables,
            content_format=content_format,
            has_developer_role=has_developer_role,
            takes_media=self._takes_media,
            size_bytes=size_bytes,
            wraps_content=is_wrapping,
        )


def _variables(options: ChatOptions) -> dict[str, object]:
    variables = dict(options.chat_template_kwargs or ())
    if variables:
        reserved = sorted(RESERVED & variables.keys())
        if reserved:
            raise ChatTemplateError(f"chat_template_kwargs must not set {', '.join(reserved)}.")
        for name in IGNORED:
            variables.pop(name, None)
    if options.tools is not None:
        variables["tools"] = options.tools
    if options.documents is not None:
        variables["documents"] = list(options.documents)
    variables["add_generation_prompt"] = options.add_generation_prompt
    return variables


def _mark_final_text(conversation: Conversation) -> tuple[str, Conversation]:
    """Returns the text of the final message, and the conversation with `END_MARK` behind it."""
    message = copy(conversation[-1])
    content = message["content"]
    if isinstance(content, str):
        message["content"] = content + END_MARK
        return content, [*conversation[:-1], message]
    for index, part in reversed([*enumerate(content)]):
        if "text" in part:
            marked = part | {"text": part["text"] + END_MARK}
            message["content"] = [*content[:index], marked, *content[index + 1 :]]
            return part["text"], [*conversation[:-1], message]
    raise ChatTemplateError("continue_final_message requires a final message that contains text.")
