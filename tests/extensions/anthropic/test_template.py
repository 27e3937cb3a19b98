"""What the chat template of a model can express of thoughts and system messages."""

from typing import Any

from app.core.api.chat.rules import ChatRules
from app.core.text.base import ChatOptions, ChatTemplateError, Message
from app.extensions.anthropic.routes import probe_disabled_effort, template_merges_system


class Template:
    """A tokenizer whose chat template knows some variables, and perhaps wants system turns first."""

    def __init__(self, *known_names: str, refuses: str = "", system_first: bool = False) -> None:
        self.known_names = known_names
        self.refuses = refuses
        self.system_first = system_first

    def render_chat(self, messages: list[Message], options: ChatOptions) -> str:
        arguments = options.chat_template_kwargs or {}
        if self.system_first and any(message["role"] == "system" for message in messages[1:]):
            raise ChatTemplateError("System message must be at the beginning.")
        if self.refuses and arguments.get("reasoning_effort") == self.refuses:
            raise ChatTemplateError("Unknown effort.")
        return str([arguments.get(name) for name in self.known_names])


def test_template_probe_finds_how_to_disable_thinking() -> None:
    templates: list[tuple[Any, str]] = [
        (Template(), "low"),
        (Template("enable_thinking"), "none"),
        (Template("reasoning_effort"), "none"),
        (Template("enable_thinking", refuses="none"), "low"),
        (Template("enable_thinking", refuses="xhigh"), "none"),
    ]
    for template, effort in templates:
        assert probe_disabled_effort(template, ChatRules()) == effort
    first: Any = Template(system_first=True)
    assert (
        template_merges_system(first) is True and template_merges_system(templates[0][0]) is False
    )
