"""The dotted path by which an error names the wrong field (vllm-api.md section 4)."""

from __future__ import annotations

_BRACKETS = frozenset("[]{}()")

# Steps that read like the internals of the schema library never reach a client, not even when they are
# the client's own keys: `{"logit_bias": {"int": "x"}}` is wrong at `body.logit_bias`.
_INTERNAL = frozenset(
    (
        *("function-wrap", "function-after", "function-before", "function-plain", "json-or-python"),
        *("lax-or-strict", "chain", "default", "nullable", "tagged-union", "union", "call", "arguments"),
        *("is-instance", "is-subclass", "callable", "str", "int", "float", "bool", "bytes", "bytearray"),
        *("list", "tuple", "dict", "set", "frozenset", "complex", "none", "nonetype"),
    )
)


def param_of(path: tuple[str | int, ...]) -> str:
    """`path` below the body as ``param``: ``("stop", 0)`` is ``body.stop.0``."""
    steps = [str(step) for step in path]
    return ".".join(["body", *(step for step in steps if not _is_internal(step))])


def _is_internal(step: str) -> bool:
    return step.lower() in _INTERNAL or not _BRACKETS.isdisjoint(step)
