"""The adapters that are served from the start, as `lora-modules` lists them."""

from __future__ import annotations

import msgspec

from app.lora.registry import Adapter, LoRARegistry
from config import ConfigError
from config.settings import LoraSettings, ModelSettings


class Module(msgspec.Struct):
    """One item of `lora-modules`."""

    name: str
    path: str = ""
    base_model_name: str = ""


def adapters_of(lora: LoraSettings, model: ModelSettings) -> LoRARegistry:
    """The loaded adapters. ConfigError for an item that is no adapter, or of another base model."""
    modules = [_module(item) for item in lora.lora_modules]
    for module in modules:
        if module.base_model_name not in ("", model.model, *model.served_names):
            other = module.base_model_name
            raise ConfigError(f"setting lora-modules: {module.name!r} is for another model, {other!r}")
        if module.name in model.served_names:
            raise ConfigError(f"setting lora-modules: {module.name!r} is a name of the base model")
    adapters = [Adapter(module.name, module.path or module.name) for module in modules]
    return LoRARegistry(adapters, lora.max_cpu_loras)


def _module(item: str) -> Module:
    """A JSON object, or `name=path`."""
    try:
        if item.lstrip().startswith("{"):
            module = msgspec.json.decode(item, type=Module)
        else:
            name, _, path = item.partition("=")
            module = Module(name.strip(), path.strip())
    except msgspec.DecodeError as error:
        raise ConfigError(f"setting lora-modules: {item!r} is no adapter: {error}") from None
    if not module.name:
        raise ConfigError(f"setting lora-modules: {item!r} has no name")
    return module
