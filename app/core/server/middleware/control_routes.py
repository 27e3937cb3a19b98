"""The list of routes that change or reveal the state of the server: `CONTROL_ROUTES`.

Pages of other origins and requests with an unknown Host header are kept away from them by
`foreign_pages`; docs/access.md shows the list. A route that is in no group serves any page, as in
vLLM: the API, and the probes and figures that load balancers and monitors read under any name.
"""

import re
from collections.abc import Mapping
from typing import Final

ADMIN = "/admin"
CONSOLE = "/console"
FAKE_METRICS = "/fake_metrics"
OPERATOR_PREFIXES = (ADMIN, CONSOLE, FAKE_METRICS)
"""Prefixes of control paths that vLLM does not have, for the operator of this server."""
CONTROL_ROUTES: Final[Mapping[str, tuple[str, ...]]] = {
    "Understudy": ("/admin{all}", "/console{all}", "/fake_metrics{all}", "/kv/index"),
    "vLLM: adapters and requests": (
        "/abort_requests",
        "/adapters",
        "/adapters/{adapter_name}",
        "/inference/v1/abort_requests",
        "/v1/load_lora_adapter",
        "/v1/unload_lora_adapter",
    ),
    "vLLM: engine": (
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
    "vLLM: weights": (
        "/finish_weight_update",
        "/init_weight_transfer_engine",
        "/shutdown_weight_transfer_engine",
        "/start_draft_weight_update",
        "/start_weight_update",
        "/update_weight_version",
        "/update_weights",
        "/weight_checker",
    ),
    "SGLang": ("/abort_request", "/flush_cache", "/get_load", "/get_server_info", "/v1/loads"),
}
"""Paths by group; a variable part in braces stands for any text.

A test fails for a route that is neither here nor in the list of the test.
"""


_PATHS = "|".join(path for paths in CONTROL_ROUTES.values() for path in paths)
CONTROL = re.compile(re.sub(r"{\w+}", ".*", f"(?:{_PATHS})") + r"/*\Z", re.DOTALL)
"""Matches the path of a control route, or of a request for one, without `root-path`."""
is_control = CONTROL.match
