"""Defaults of options in versions of vLLM that are older than the described ones."""

from collections.abc import Iterator

from config.settings import Table
from vllm_facts.history import read_history
from vllm_facts.names import value_in
from vllm_facts.version import DESCRIBED, PATCHES


def past_defaults(version: str, table: Table) -> Iterator[tuple[str, str]]:
    """Yields the settings that an option of the same name sets, where its default was another."""
    release = PATCHES[version]
    described = PATCHES[DESCRIBED[0]]
    for form, lifetime in read_history().options.items():
        name = form.removeprefix("--")
        default = value_in(lifetime.defaults, release)
        if name not in table.by_name or default is None or not lifetime.is_in(release):
            continue
        if default not in ("", value_in(lifetime.defaults, described)):
            yield name, default
