"""The generated pages of hooks, keys of scripts and fault rules, and KV events."""

import inspect
import types
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import fields

from config.settings import field_docs
from scripts.generated_page import Page, Section, code, one_line

PLAIN = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    bytes: "bytes",
    dict: "object",
    list: "list",
    object: "any value",
    Any: "any value",
}
PLURALS = {"text": "texts", "number": "numbers", "any value": "values", "list": "lists"}
KEY_COLUMNS = ("key", "value", "meaning")
MEANINGS = {
    "prompt_tokens": "Number of prompt tokens to report.",
    "completion_tokens": "Number of generated tokens to report.",
    "cached_tokens": "Number of cached prompt tokens to report.",
    "block_hashes": "Hashes of the blocks, in the order of the prompt.",
    "parent_block_hash": "Hash of the block before the first one; null at the start of a prompt.",
    "token_ids": "Token IDs of all blocks in a row.",
    "block_size": "Tokens per block.",
    "lora_id": "Number of the adapter; null without one.",
    "medium": "Where the blocks are: `GPU` or another tier.",
    "lora_name": "Name of the adapter; null without one.",
    "extra_keys": "For each block, what its hash covers beside the tokens: adapter, salt, media.",
    "group_idx": "Number of the KV cache group.",
    "kv_cache_spec_kind": "Kind of attention of the group.",
    "kv_cache_spec_sliding_window": "Window of the group, in tokens.",
    "locality": "Not set by Understudy.",
    "ownership": "Not set by Understudy.",
    "session_id": "Not set by Understudy.",
}
"""Meanings of fields whose structs have no docstrings for them."""


def hooks_page() -> Page:
    """Returns the page of the hooks of plugins."""
    plugin = import_module("app.extensions.plugins.api").Plugin
    rows = []
    for hook in import_module("app.extensions.plugins.registry").HOOKS:
        member = getattr(plugin, hook)
        signature = str(inspect.signature(member)).partition(" -> ")[0]
        signature = signature.replace("(self, ", "(").replace("(self)", "()")
        parameters = ", ".join(
            part.partition(":")[0] for part in signature.strip("()").split(", ") if part
        )
        rows.append((code(f"{hook}({parameters})"), one_line(inspect.getdoc(member) or "")))
    return Page(
        "reference-hooks.md", "Hooks of plugins", [Section("Hooks", ("hook", "result"), rows)]
    )


def scripts_page() -> Page:
    """Returns the page of the keys of scripts and fault rules."""
    rules = import_module("app.extensions.scripts.rules")
    common = import_module("app.core.protocol.common")
    faults = import_module("app.extensions.faults.fault_rules")
    structs = {
        "File": rules.Script,
        "Rule": rules.Rule,
        "When": rules.When,
        "Message": rules.MessageIs,
        "Tool result": rules.ToolResultIs,
        "Range": rules.Range,
        "Nth": rules.Nth,
        "Then": rules.Then,
        "Tool call": rules.RuleCall,
        "Delays": rules.Delays,
        "Usage": common.UsageOverrides,
        "Fault rule": faults.FaultRule,
    }
    names = {kind: heading for heading, kind in structs.items()}
    names[rules.TextIs] = "Message"
    sections = [
        Section(heading, KEY_COLUMNS, key_rows(kind, names)) for heading, kind in structs.items()
    ]
    shared = {field.name for field in fields(faults.FaultRule)}
    for action, kind in faults.rule_kinds().items():
        rows = [(code("action"), code(action), one_line(kind.__doc__ or ""))]
        rows += key_rows(kind, names, without=shared)
        sections.append(Section(f"Fault {action}", KEY_COLUMNS, rows))
    return Page("reference-scripts.md", "Keys of scripts and fault rules", sections)


def events_page() -> Page:
    """Returns the page of the KV events."""
    events = import_module("app.core.engine.kvcache.events")
    sections = []
    for kind in (events.BlockStored, events.BlockRemoved, events.AllBlocksCleared):
        rows = [(code("type"), code(kind.__name__), one_line(kind.__doc__ or ""))]
        rows += key_rows(kind, {})
        sections.append(Section(kind.__name__, ("field", "value", "meaning"), rows))
    return Page("reference-events.md", "KV events", sections)


def key_rows(
    kind: type[msgspec.Struct], names: Mapping[type, str], without: set[str] = frozenset()
) -> list[tuple[str, ...]]:
    """Returns a row for each field of a struct, those of its base classes included.

    `names` maps a struct to the heading of its table.
    """
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            docs |= field_docs(base)
    hints = get_type_hints(kind, include_extras=True)
    rows = []
    for field in fields(kind):
        if field.name in without:
            continue
        value = type_words(hints[field.name], names)
        if _has_plain_default(field.default):
            value += f", default {code(msgspec.json.encode(field.default).decode())}"
        if field.required:
            value += "; required"
        rows.append(
            (
                code(field.encode_name),
                value,
                one_line(docs.get(field.name) or MEANINGS.get(field.name, "")),
            )
        )
    return rows


def type_words(hint: Any, names: Mapping[type, str]) -> str:
    """Describes a type for readers of YAML and JSON."""
    origin = get_origin(hint)
    arguments = get_args(hint)
    if origin is Annotated:
        return type_words(arguments[0], names)
    if origin is Literal:
        return " ".join(code(str(choice)) for choice in arguments)
    if origin in (Union, types.UnionType):
        return _alternatives(arguments, names)
    if origin in (list, tuple):
        return f"list of {_plural(type_words(arguments[0], names))}"
    if origin is not None and issubclass(origin, Mapping):
        return f"object of {_plural(type_words(arguments[1], names))}"
    if hint in names:
        anchor = names[hint].lower().replace(" ", "-")
        return f"[{names[hint].lower()}](#{anchor})"
    return PLAIN.get(hint, str(getattr(hint, "__name__", hint)))


def _has_plain_default(default: object) -> bool:
    """Returns whether the default of a field is worth a word."""
    if isinstance(default, msgspec.Struct):
        return False
    return default not in (msgspec.NODEFAULT, msgspec.UNSET, None, "", ())


def _plural(words: str) -> str:
    for singular, plural in PLURALS.items():
        words = words.replace(singular, plural)
    return words


def _alternatives(members: Sequence[Any], names: Mapping[type, str]) -> str:
    words = [
        type_words(member, names)
        for member in members
        if member not in (type(None), msgspec.UnsetType)
    ]
    return " or ".join(dict.fromkeys(words))
