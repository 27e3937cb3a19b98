"""Options of `serve` in versions of vLLM that are older or newer than the described ones.

Of these versions, history.json has the names of the options, what follows them, and their choices.
Limits and effects of the options are taken from the described versions.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from vllm_facts.facts import OPTIONS
from vllm_facts.history import History, Lifetime
from vllm_facts.names import value_in
from vllm_facts.option import Kind, Option
from vllm_facts.version import parse_version
from vllm_facts.version_order import described_versions

KINDS: dict[str, Kind] = {"int": "int", "float": "float", "dict": "JSON", "json": "JSON"}
"""First word of a declared type -> kind of the value; texts for other types."""
TABLES = {
    "tool-call-parser": "tool_parsers",
    "reasoning-parser": "reasoning_parsers",
    "quantization": "quantizations",
}
"""Options whose values are tables of the history."""


TASK = Option(
    kind="text",
    choices=(
        *("auto", "classify", "draft", "embed", "embedding", "generate", "reward", "score"),
        "transcription",
    ),
    values={"auto": None, "draft": None, "embedding": "embed", "reward": "pooling"},
    effect="Setting `task`: with `auto`, the architecture decides.",
)
"""The option that `runner` and `convert` replace in newer versions."""


def past_options(history: History, version: str) -> dict[str, Option]:
    """Returns the options of a version such as 0.19."""
    options: dict[str, Option] = {}
    present: set[str] = set()
    described = described_versions(parse_version(version))
    for name, option in OPTIONS.items():
        lifetime = history.options.get(f"--{name}")
        if lifetime is None and option.since:
            continue
        if lifetime is None or lifetime.is_in(version):
            options[name] = _past_option(name, option.as_of(described), history, version)
            present.update((f"--{name}", f"--no-{name}", *option.also))
    for form, lifetime in history.options.items():
        if lifetime.is_in(version) and form not in present:
            options[form.removeprefix("--")] = _removed_option(lifetime, version)
    if "task" in options:
        options["task"] = TASK
    return options


def _past_option(name: str, option: Option, history: History, version: str) -> Option:
    """Returns an option with the names and values that a version has."""
    other_forms = [
        form
        for form in option.also
        if form not in history.options or history.options[form].is_in(version)
    ]
    if len(other_forms) < len(option.also):
        option = replace(option, also=tuple(other_forms))
    if name in TABLES:
        values: dict[str, Lifetime] = getattr(history, TABLES[name])
        present = [value for value, lifetime in values.items() if lifetime.is_in(version)]
        return replace(option, names=tuple(present), later={})
    lifetime = history.options.get(f"--{name}")
    if lifetime is None or not lifetime.choices:
        return option
    choices = tuple(choice for choice in lifetime.choices_in(version) if choice != "None")
    if option.choices:
        return replace(option, choices=choices, later={})
    if option.listed:
        # A release whose type does not list the values accepts those of all releases.
        return replace(option, names=choices or tuple(lifetime.choices), later={})
    return option


def _removed_option(lifetime: Lifetime, version: str) -> Option:
    """Returns an option that the described versions do not have."""
    takes = value_in(lifetime.takes, version) or "one"
    if takes == "nothing":
        return Option(kind="switch", off=True)
    declared = value_in(lifetime.types, version) or "str"
    kind = KINDS.get(next(_words(declared), ""), "text")
    choices = [choice for choice in lifetime.choices_in(version) if choice != "None"]
    return Option(
        kind=kind,
        many=takes == "some",
        bare=takes == "maybe",
        optional=True,
        choices=tuple(choices),
    )


def _words(declared: str) -> Iterator[str]:
    """Yields the words of a type, without those of optional ones."""
    for word in declared.replace("[", " ").replace(".", " ").replace("|", " ").split():
        if word not in ("None", "list", "nullable_kvs", "optional_type"):
            yield word
