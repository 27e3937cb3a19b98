"""Details that the console shows on request: of one choice, of a setting, of an error."""

from itertools import islice
from reprlib import Repr

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from app.core.base.error_body import error_message
from app.core.engine.request import EngineRequest
from app.core.server.http.response import Response
from app.core.text.base import Tokenizer
from app.extensions.console.bars import Bar
from config.settings import Setting
from config.validation import LiveSettings

MAX_PROMPT_TOKENS = 4096
"""Most tokens of a prompt that are decoded."""
MAX_TEXT_CHARACTERS = 20_000
"""Most characters of a prompt or a reply."""
MAX_SETTING_CHARACTERS = 1000
MAX_SETTING_ITEMS = 20
REQUEST_FIELDS = (
    "n",
    "length_penalty",
    "priority",
    "cache_salt",
    "cache_hit_threshold",
    "constraint",
    "tool_calls",
)
"""Fields of an engine's request that a client sets besides the sampling; the server sets others."""


def describe_choice(bar: Bar, tokenizer: Tokenizer) -> dict[str, object]:
    """Returns what the page does not know of a choice; long texts are cut."""
    request = bar.request
    sequence = bar.sequence
    prompt = tokenizer.decode(
        list(request.prompt_ids[:MAX_PROMPT_TOKENS]), skip_special_tokens=False
    )
    details: dict[str, object] = {
        "client": bar.origin.client,
        "trace_id": bar.origin.trace_id,
        "prompt": prompt[:MAX_TEXT_CHARACTERS],
        "reply": bar.reply[:MAX_TEXT_CHARACTERS],
        "tokens": bar.tokens,
        "blocks": [],
        "outcome": None,
        "settings": client_settings(request),
    }
    if sequence is not None:
        details["reply"] = sequence.text()[:MAX_TEXT_CHARACTERS]
        details["tokens"] = sequence.tokens
        if not sequence.over:
            details["blocks"] = sequence.block_numbers(0)
    if bar.outcome is not None:
        details["outcome"] = msgspec.to_builtins(bar.outcome)
    return details


def client_settings(request: EngineRequest) -> dict[str, object]:
    """Returns the fields of a request that differ from their defaults, shortened."""
    settings = _changed_fields(request.sampling)
    if request.sampling.is_limited:
        settings["max_tokens"] = request.max_tokens
    changed = _changed_fields(request)
    settings |= {name: changed[name] for name in REQUEST_FIELDS if name in changed}
    return {name: summarize(value) for name, value in settings.items()}


def summarize(value: object) -> object:
    """Returns numbers unchanged, and other values as text of at most `MAX_SETTING_CHARACTERS`.

    Only the start of a long value is read, and only those fields of a struct that differ from their
    defaults.
    """
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, Struct):
        value = _changed_fields(value)
    if isinstance(value, (tuple, frozenset)):
        value = list(islice(value, MAX_SETTING_ITEMS + 1))
    if not isinstance(value, str):
        value = _brief_repr().repr(value)
    return value[:MAX_SETTING_CHARACTERS]


def _changed_fields(struct: Struct) -> dict[str, object]:
    changed: dict[str, object] = {}
    for field in fields(struct):
        value = getattr(struct, field.name)
        if value not in (field.default, {}):
            changed[field.name] = value
    return changed


def _brief_repr() -> Repr:
    brief = Repr()
    brief.maxlevel = 3
    brief.maxstring = MAX_SETTING_CHARACTERS
    brief.maxother = MAX_SETTING_CHARACTERS
    for limit in ("maxdict", "maxlist", "maxtuple", "maxset", "maxfrozenset"):
        setattr(brief, limit, MAX_SETTING_ITEMS)
    return brief


def describe_setting(row: Setting, live: LiveSettings) -> dict[str, object]:
    """Returns a setting with its value, its limits and its help."""
    choices = []
    if row.kind.name.startswith("one of "):
        choices = list(row.kind.type.__args__)
    return {
        "name": row.name,
        "group": row.group,
        "kind": row.kind.name,
        "help": row.help,
        "unit": row.about.unit,
        "limits": row.limits,
        "choices": choices,
        "optional": row.optional,
        "secret": row.about.secret,
        "value": row.shown(row.value(live.current)),
        "default": row.shown(row.default),
        "live": row.about.live,
    }


def error_summary(response: Response) -> str:
    """Returns status and message of an error in one line, as in `status 429: Queue full`."""
    summary = f"status {response.status}"
    message = " ".join(error_message(response.body).split())
    if message:
        summary += f": {message}"
    return summary
