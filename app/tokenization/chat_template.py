"""Chat templates: Jinja in a sandbox, in the environment that their authors expect (transformers')."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from app.tokenization.base import PLAIN_CHAT, ChatOptions, ChatTemplateError, Message
from app.tokenization.content_format import ContentFormat, detect_content_format
from app.tokenization.conversation import Conversation, developer_as_system, parse_messages
from app.tokenization.folder import DEFAULT_TEMPLATE

KEPT_TEMPLATES = 32
"""Compiled templates that are remembered: requests may bring their own, if the server trusts them."""
RESERVED = frozenset({"chat_template", "tokenize", "conversation", "messages"})
"""Names that a request's chat_template_kwargs may not set."""
END_MARK = "END_OF_WHAT_TO_CONTINUE "
"""Follows the final message through the template, so that what the template adds after it can be cut off."""


class CompiledTemplate(NamedTuple):
    """A template and what is known about it before it meets a conversation."""

    template: jinja2.Template
    globals: Mapping[str, Any]
    content_format: ContentFormat
    knows_developer: bool


class ChatTemplates:
    """The chat templates of one tokenizer.

    Args:
        sources: template name -> Jinja source; `default` and perhaps `tool_use` and others.
        special_tokens: names that every template can use, such as `bos_token`.
        now: local time for `strftime_now`.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        special_tokens: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._sources = sources
        self.tells_time = any("strftime_now" in source for source in sources.values())
        """Some template's text depends on the clock, so equal conversations may differ as prompts."""
        self._special_tokens = special_tokens
        self._environment = _environment(now)
        self._compile = lru_cache(maxsize=KEPT_TEMPLATES)(self._compile_source)

    def render(self, messages: Sequence[Message], options: ChatOptions = PLAIN_CHAT) -> str:
        """Return the prompt text of a conversation.

        Raises:
            ChatTemplateError: for whatever goes wrong inside; the message carries the template's own reason.
        """
        if options.continue_final_message and options.add_generation_prompt:
            raise ChatTemplateError("continue_final_message and add_generation_prompt exclude each other.")
        compiled = self._compile(self._source(options))
        conversation = parse_messages(messages, compiled.content_format)
        if not compiled.knows_developer:
            conversation = developer_as_system(conversation)
        variables = self._variables(options)
        if not options.continue_final_message:
            return _render(compiled, conversation, variables)
        final, marked = _mark_final_text(conversation)
        return _cut_at_mark(_render(compiled, marked, variables), final)

    def _source(self, options: ChatOptions) -> str:
        """Return the request's template (source or name), else `tool_use` for tools, else `default`."""
        if options.chat_template is not None:
            return self._sources.get(options.chat_template, options.chat_template)
        if options.tools is not None and "tool_use" in self._sources:
            return self._sources["tool_use"]
        try:
            return self._sources[DEFAULT_TEMPLATE]
        except KeyError:
            raise ChatTemplateError("The tokenizer has no chat template, and the request none.") from None

    def _compile_source(self, source: str) -> CompiledTemplate:
        try:
            content_format = detect_content_format(self._environment.parse(source))
            template = self._environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise ChatTemplateError(f"The chat template does not compile: {error}") from error
        knows_developer = re.search("""["']developer["']""", source) is not None
        return CompiledTemplate(template, dict(template.globals), content_format, knows_developer)

    def _variables(self, options: ChatOptions) -> dict[str, Any]:
        extra = dict(options.chat_template_kwargs or {})
        if refused := sorted(RESERVED & extra.keys()):
            raise ChatTemplateError(f"chat_template_kwargs must not set {', '.join(refused)}.")
        given: dict[str, Any] = {"tools": options.tools, "documents": options.documents}
        variables: dict[str, Any] = {**given, **self._special_tokens, **extra}
        # A field of the request that is set wins over the same name in chat_template_kwargs.
        variables |= {name: list(value) for name, value in given.items() if value is not None}
        return variables | {"add_generation_prompt": options.add_generation_prompt}


def _render(compiled: CompiledTemplate, conversation: Conversation, variables: Mapping[str, Any]) -> str:
    # `Template.render` would walk over the chained globals of the environment each time; this is its core.
    context = compiled.template.new_context(
        {**compiled.globals, **variables, "messages": conversation}, shared=True
    )
    try:
        return "".join(compiled.template.root_render_func(context))
    except Exception as error:  # a template is a program, and may fail in any way
        raise ChatTemplateError(f"The chat template refused the conversation: {error}") from error


def _mark_final_text(conversation: Conversation) -> tuple[str, Conversation]:
    """Return the text of the final message, and the conversation with `END_MARK` behind that text."""
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
    raise ChatTemplateError("continue_final_message needs a final message with text in it.")


def _cut_at_mark(rendered: str, final: str) -> str:
    mark = END_MARK.strip()
    if mark not in rendered or final.strip() not in rendered:
        raise ChatTemplateError("continue_final_message: the template does not show the final message.")
    prompt = rendered[: rendered.rindex(mark)]
    # A template that strips messages has taken the mark's blank away, and would have taken the text's.
    return prompt if rendered.startswith(END_MARK, len(prompt)) else prompt.rstrip()


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`: marks what an assistant said; here it only groups."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """Return the body as a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML; a prompt wants plain JSON."""
    layout: dict[str, Any] = {"indent": indent, "separators": separators, "sort_keys": sort_keys}
    return json.dumps(value, ensure_ascii=ensure_ascii, **layout)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
