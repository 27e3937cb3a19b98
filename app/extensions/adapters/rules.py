"""Rules of adapters that differ between versions of vLLM."""

from msgspec import Struct


class AdapterRules(Struct, frozen=True, kw_only=True):
    """The defaults are the rules of the newest version."""

    protects_models: bool = True
    """An adapter cannot have the name of the base model."""
