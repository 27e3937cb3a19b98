"""Options that the selected vLLM does not have: their errors, and how to ignore them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from config.declaration import UsageError
from config.flag_words import Flag, full_forms_of, unknown_flag
from vllm_facts.history import read_history
from vllm_facts.option import Option
from vllm_facts.options import names_of
from vllm_facts.removal import removal_of

ALLOW = "allow-removed-options"
PREFIX = "removed "
"""Prefix of removed options among the values of flags."""
SWITCHES = frozenset(
    (
        "--calculate-kv-scales",
        "--eplb-log-balancedness",
        "--expand-tools-even-if-tool-choice-none",
        "--guided-decoding-disable-additional-properties",
        "--guided-decoding-disable-any-whitespace",
        "--guided-decoding-disable-fallback",
        "--multi-step-stream-outputs",
        "--speculative-disable-mqa-scorer",
        "--worker-use-ray",
    )
)
"""Removed options without a value; so are all whose names begin with `SWITCH_PREFIXES`."""
SWITCH_PREFIXES = ("--enable-", "--disable-", "--use-")
LISTS = frozenset(("--cuda-graph-sizes", "--prompt-adapters"))


def absent_option(
    form: str, forms: Sequence[str], *, version: str, options: Mapping[str, Option]
) -> UsageError:
    """Returns the error for a flag that is not among `forms`.

    Args:
        form: The flag as it was written, with dashes.
        forms: All flags that the selected version and the settings have.
        version: The selected version.
        options: The options of all supported versions.
    """
    for name, option in options.items():
        if option.since and form in names_of(name):
            return _too_early(form, option.since)
    lifetime = read_history().options.get(form)
    if lifetime is not None and not lifetime.is_in(version):
        first = lifetime.first_after(version)
        if first:
            return _too_early(form, first)
    text = removal_of(form, version)
    if text:
        return UsageError(f"unknown flag {form}: {text}; --{ALLOW} accepts it")
    return unknown_flag(form, forms, full_forms_of(form, forms))


def _too_early(form: str, since: str) -> UsageError:
    return UsageError(f"flag {form} requires vLLM {since} (--vllm-version {since})")


def removed_flags(version: str, forms: Iterable[str]) -> Iterator[Flag]:
    """Yields the options that vLLM removed up to a version, except for `forms`."""
    present = frozenset(forms)
    for form, lifetime in read_history().options.items():
        if lifetime.is_gone_in(version) and form not in present:
            yield from flags_of_removed(form)


def flags_of_removed(form: str) -> Iterator[Flag]:
    """Yields the flags of an option that newer versions do not have."""
    takes: Literal["nothing", "one", "some"] = "one"
    if form in SWITCHES or form.startswith(SWITCH_PREFIXES):
        takes = "nothing"
        yield Flag(name=PREFIX + form, forms=(form.replace("--", "--no-", 1),), takes=takes)
    elif form in LISTS:
        takes = "some"
    yield Flag(name=PREFIX + form, forms=(form,), takes=takes)


def removed_options_in(
    values: dict[str, str | list[str]], version: str, setting_forms: Iterable[str]
) -> Iterator[str]:
    """Removes the values of removed options, and yields a warning for each.

    `setting_forms` are removed options that set a setting of the same name.
    """
    for form in sorted(setting_forms):
        if form.lstrip("-") in values:
            yield f"flag {form} sets a setting: {removal_of(form, version)}"
    for name in [name for name in values if name.startswith(PREFIX)]:
        del values[name]
        form = name.removeprefix(PREFIX)
        yield f"flag {form} has no effect: {removal_of(form, version)}; vLLM {version} rejects it"
