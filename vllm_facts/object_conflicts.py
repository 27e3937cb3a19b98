"""Fields of an option's object that vLLM does not accept together."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial

Fields = Mapping[str, object]

PROTON_FIELDS = {
    "proton_profiler_dir": "",
    "proton_context": "shadow",
    "proton_data": "tree",
    "proton_backend": None,
    "proton_mode": None,
    "proton_hook": None,
    "proton_output_format": None,
    "proton_graph_attribution": False,
}
"""Field of the profiler proton -> its default."""
TORCH_FIELDS = ("torch_profiler_dir", "capture_torch_profiler")


def conflicts_of(option: str, fields: Fields) -> Iterator[str]:
    """Yields the rule that an option's object breaks, for each conflict of its valid fields."""
    if option in _CONFLICTS:
        yield from _CONFLICTS[option](fields)


def _in_structured_outputs(fields: Fields) -> Iterator[str]:
    backend = fields.get("backend", "auto")
    if fields.get("disable_any_whitespace") and backend not in ("xgrammar", "guidance"):
        yield "disable_any_whitespace requires the backend xgrammar or guidance"
    if fields.get("disable_additional_properties") and backend != "guidance":
        yield "disable_additional_properties requires the backend guidance"


def _in_pooler(fields: Fields) -> Iterator[str]:
    if fields.get("pooling_type") is not None:
        for name in ("seq_pooling_type", "tok_pooling_type"):
            if fields.get(name) is not None:
                yield f"pooling_type and {name} exclude each other"
    if fields.get("logit_sigma") == 0:
        yield "logit_sigma must not be 0"


def _in_profiler(fields: Fields) -> Iterator[str]:
    profiler = fields.get("profiler")
    for name in TORCH_FIELDS:
        if fields.get(name) and profiler != "torch":
            yield f"{name} requires the profiler torch"
    if fields.get("torch_profiler_activities") is not None and profiler != "torch":
        yield "torch_profiler_activities requires the profiler torch"
    for name, default in PROTON_FIELDS.items():
        if fields.get(name, default) != default and profiler != "proton":
            yield f"{name} requires the profiler proton"
    folder = f"{profiler}_profiler_dir"
    if profiler in ("torch", "proton") and not fields.get(folder):
        yield f"{folder} is required for the profiler {profiler}"


def _in_compilation(fields: Fields) -> Iterator[str]:
    operations = fields.get("custom_ops")
    if not isinstance(operations, list):
        return
    signed = [name for name in operations if name not in ("all", "none")]
    for name in signed:
        if len(name) < 2 or name[0] not in "+-":
            yield f"custom_ops must be all, none, +NAME, or -NAME, got {name!r}"
    if "all" in operations and "none" in operations:
        yield "custom_ops must not contain both all and none"
    for name in signed:
        if f"-{name[1:]}" in operations and f"+{name[1:]}" in operations:
            yield f"custom_ops must not contain both +{name[1:]} and -{name[1:]}"


def _in_kv_transfer(fields: Fields) -> Iterator[str]:
    if fields.get("kv_connector") is None:
        yield "kv_connector is required"
    yield from _in_transfer("kv", fields)


def _in_transfer(prefix: str, fields: Fields) -> Iterator[str]:
    if fields.get(f"{prefix}_connector") is not None and fields.get(f"{prefix}_role") is None:
        roles = [f"{prefix}_{role}" for role in ("producer", "consumer", "both")]
        yield f"{prefix}_role is required; it must be {roles[0]}, {roles[1]}, or {roles[2]}"


_CONFLICTS: Mapping[str, Callable[[Fields], Iterator[str]]] = {
    "compilation-config": _in_compilation,
    "ec-transfer-config": partial(_in_transfer, "ec"),
    "kv-transfer-config": _in_kv_transfer,
    "pooler-config": _in_pooler,
    "profiler-config": _in_profiler,
    "structured-outputs-config": _in_structured_outputs,
}
