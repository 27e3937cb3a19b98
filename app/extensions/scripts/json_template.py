"""A JSON value of a rule whose texts may be templates."""

import json
import math
from collections.abc import Callable

from app.extensions.scripts.rules import RuleFailureError, ScriptError
from app.extensions.scripts.template import Template
from app.extensions.scripts.template_limits import MAX_CHARACTERS, Values, size_of
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

MAX_FILLED_VALUES = 20_000
"""Most values of a JSON value with templates, which is built for each request."""


class JsonTemplate:
    """A JSON value of a rule. Each text in it may be a template."""

    def __init__(
        self, value: object, key: str, compile_text: Callable[[str, str], Template]
    ) -> None:
        """`key` is the place below `then`. `compile_text` compiles a text at a key.

        Raises:
            ScriptError: The value is not JSON, or a template is invalid.
        """
        self._key = key
        self._compile_text = compile_text
        self._value_count = 0
        self._has_templates = False
        self._compiled = self._compile(value, key)
        self.constant_text: str | None = None
        """The JSON of a value without templates."""
        if not self._has_templates:
            self._constant = _fill(self._compiled, {})
            self.constant_text = json.dumps(self._constant, ensure_ascii=False)
        elif size_of(value) > MAX_CHARACTERS:
            raise ScriptError(
                f"then.{key}: JSON with templates must not exceed {MAX_CHARACTERS} characters"
            )
        elif self._value_count > MAX_FILLED_VALUES:
            raise ScriptError(
                f"then.{key}: JSON with templates must not exceed {MAX_FILLED_VALUES} values"
            )

    def fill(self, values: Values) -> tuple[object, str]:
        """Returns the value and its JSON.

        Raises:
            RuleFailureError: A template fails, or makes a text that is too long.
        """
        if self.constant_text is not None:
            return self._constant, self.constant_text
        value = _fill(self._compiled, values)
        if size_of(value) > MAX_CHARACTERS:
            raise RuleFailureError(f"{self._key} must not exceed {MAX_CHARACTERS} characters")
        return value, json.dumps(value, ensure_ascii=False)

    def _compile(self, value: object, key: str) -> object:
        """Returns `value` with compiled templates instead of texts, and counts its values."""
        self._value_count += 1
        if isinstance(value, str):
            template = self._compile_text(value, key)
            if not template.is_constant:
                self._has_templates = True
            return template
        if isinstance(value, dict):
            return {
                str(name): self._compile(member, f"{key}.{name}") for name, member in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._compile(item, key) for item in value]
        is_finite = isinstance(value, float) and math.isfinite(value)
        if not is_finite and not isinstance(value, bool | int | None):
            raise ScriptError(
                f"then.{key}: {type(value).__name__} is not valid in JSON; put the value in quotes"
            )
        return value


class ArgumentsText:
    """The arguments of a call as a text, which is sent unchanged."""

    def __init__(
        self,
        source: str,
        key: str,
        compile_text: Callable[[str, str], Template],
        *,
        is_checked: bool,
    ) -> None:
        """`key` is the place below `then`. A checked text has to be a JSON object.

        Raises:
            ScriptError: The template is invalid, or a text without templates is no JSON object.
        """
        self._key = key
        self._template = compile_text(source, key)
        self._is_checked = is_checked
        if self._template.is_constant:
            try:
                self.fill({})
            except RuleFailureError as error:
                raise ScriptError(f"then.{error}") from None

    def fill(self, values: Values) -> tuple[object, str]:
        """Returns the value of a checked text, and the text.

        Raises:
            RuleFailureError: The template fails, or a checked text is no JSON object.
        """
        text = self._template.text(values)
        if not self._is_checked:
            return None, text
        try:
            value = decode_untrusted(text, decoder=python_json)
        except UntrustedDataError:
            value = None
        if not isinstance(value, dict):
            raise RuleFailureError(
                f"{self._key}: must be a JSON object unless `unchecked` is true, got {text[:60]!r}"
            )
        return value, text


def _fill(compiled: object, values: Values) -> object:
    """Returns a new JSON value with the values of all templates."""
    if isinstance(compiled, Template):
        return compiled.value(values)
    if isinstance(compiled, dict):
        return {name: _fill(member, values) for name, member in compiled.items()}
    if isinstance(compiled, list):
        return [_fill(item, values) for item in compiled]
    return compiled
