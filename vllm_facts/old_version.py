"""Explains how the oldest supported version treats a command line for an earlier vLLM."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from config.flag_words import FlagFlaw, placed_words
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from vllm_facts.history import Lifetime, read_history
from vllm_facts.options import option_flags, options_of
from vllm_facts.words import without_dots


def advice(
    version: str, words: Sequence[str], environ: Mapping[str, str], settings: Iterable[str]
) -> str:
    """Returns what a version rejects, ignores and accepts.

    Args:
        version: A supported version.
        words: A command line for an earlier version, also from a file.
        environ: The environment variables.
        settings: Flags that are not options of vLLM.
    """
    history = read_history()
    forms: set[str] = set()
    for name, described in options_of([version]).items():
        for flag in option_flags(name, described):
            forms.update(flag.forms)
    rejected: list[str] = []
    misread: list[str] = []
    accepted: list[str] = []
    for option, key in _options_and_keys(words):
        full_forms = [form for form in sorted(forms) if form.startswith(option)]
        if option in settings and option not in {*forms, *history.options}:
            continue
        if key:
            lifetime = history.keys.get(key)
            if lifetime is not None and option in forms and lifetime.is_gone_in(version):
                rejected.append(_described(key, lifetime))
        elif option in forms:
            accepted.append(option)
        elif len(full_forms) == 1:  # vLLM accepts beginnings of options
            misread.append(f"{option} as {full_forms[0]}")
        else:
            rejected.append(_described(option, history.options.get(option)))
    ignored = [
        _described(name, lifetime)
        for name, lifetime in history.variables.items()
        if name in environ and lifetime.is_gone_in(version)
    ]
    actions = {
        "rejects": rejected,
        "reads": misread,
        "ignores": ignored,
        "accepts": accepted,
    }
    sentences = [f"{verb} {', '.join(names)}" for verb, names in actions.items() if names]
    return f"vLLM {version} {'; '.join(sentences) or 'accepts this command line'}"


def _described(name: str, lifetime: Lifetime | None) -> str:
    if lifetime is None or not lifetime.gone_in:
        return f"{name} (unknown)"
    text = f"{name} (removed in {lifetime.gone_in}"
    if lifetime.replacement not in ("", "unknown"):
        text += f", use {lifetime.replacement}"
    return f"{text})"


def _options_and_keys(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields options, and with their keys, as in ("--a", "") and ("--a", "--a.b")."""
    option = ""
    flaws: list[FlagFlaw] = []
    plain_words = [word.text for word in without_dots(placed_words(words), flaws)]
    for flaw in flaws:
        raise flaw.error
    for word in plain_words:
        name, _, text = word.partition("=")
        if word.startswith("--"):
            option = name.replace("_", "-")
            yield option, ""
        else:
            text = word
        for path in _paths(text):
            yield option, f"{option}.{path}"


def _paths(text: str) -> Iterator[str]:
    """Yields the keys in a JSON object, those of inner objects with dots."""
    if not text.startswith("{"):
        return
    try:
        content = decode_untrusted(text, decoder=python_json)
    except UntrustedDataError:
        return
    if isinstance(content, dict):
        for key, value in content.items():
            yield key
            for path in _paths(json.dumps(value)):
                yield f"{key}.{path}"
