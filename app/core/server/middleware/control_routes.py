"""The list of routes that change or reveal the state of the server: `CONTROL_GROUPS`.

Pages of other origins and requests with an unknown Host header are kept away from them by
`foreign_pages`; docs/access.md shows the list. A route that is in no group serves any page, as in
vLLM: the API, and the probes and figures that load balancers and monitors read under any name.
"""

import re
from collections.abc import Iterator

from msgspec import Struct

ADMIN = "/admin"
CONSOLE = "/console"
FAKE_METRICS = "/fake_metrics"
OPERATOR_PREFIXES = (ADMIN, CONSOLE, FAKE_METRICS)
"""Prefixes of control paths that vLLM does not have, for the operator of this server."""
SGLANG_PATHS = (
    "/abort_request",
    "/flush_cache",
    "/get_load",
    "/get_server_info",
    "/v1/loads",
)
"""Control routes of SGLang besides those that vLLM has, too."""


class ControlGroup(Struct, frozen=True, kw_only=True):
    """Routes of one origin: all paths that begin with a prefix, and single paths.

    Variable parts of `paths` are in braces.
    """

    name: str
    prefixes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


CONTROL_GROUPS = (
    ControlGroup(name="Understudy", prefixes=OPERATOR_PREFIXES, paths=("/kv/index",)),
    ControlGroup(
        name="vLLM: adapters and requests",
        paths=(
            "/abort_requests",
            "/adapters",
            "/adapters/{adapter_name}",
            "/inference/v1/abort_requests",
            "/v1/load_lora_adapter",
            "/v1/unload_lora_adapter",
        ),
    ),
    ControlGroup(
        name="vLLM: engine",
        paths=(
            "/collective_rpc",
            "/pause",
            "/release_kv_cache_memory",
            "/reset_encoder_cache",
            "/reset_mm_cache",
            "/reset_prefix_cache",
            "/resume",
            "/scale_elastic_ep",
            "/server_info",
            "/sleep",
            "/start_profile",
            "/stop_profile",
            "/wake_up",
        ),
    ),
    ControlGroup(
        name="vLLM: weights",
        paths=(
            "/finish_weight_update",
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
            "/start_draft_weight_update",
            "/start_weight_update",
            "/update_weight_version",
            "/update_weights",
            "/weight_checker",
        ),
    ),
    ControlGroup(name="SGLang", paths=SGLANG_PATHS),
)
"""All control routes. A test fails for a route that is neither here nor in its own list."""


def _patterns() -> Iterator[str]:
    for group in CONTROL_GROUPS:
        for prefix in group.prefixes:
            yield re.escape(prefix)
        for path in group.paths:
            fixed_part, brace, _ = path.partition("{")
            if brace:
                yield re.escape(fixed_part)
            else:
                yield re.escape(path) + r"/*\Z"


CONTROL = re.compile("|".join(_patterns()))
"""Matches the path of a control route, or of a request for one, without `root-path`."""
is_control = CONTROL.match
