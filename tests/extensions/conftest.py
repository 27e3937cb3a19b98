"""Leaves out tests of extensions that do not require one another, if one of them was deleted."""

from tests.present import is_present

OTHER_EXTENSIONS = {
    "console/wire/test_axis.py": "lab",
    "console/wire/test_browser.py": "lab",
    "console/wire/test_compare.py": "lab",
    "console/wire/test_figures.py": "lab",
    "console/wire/test_server.py": "llm",
    "console/wire/test_views.py": "lab",
    "data_parallel/test_beam_search.py": "beam_search",
    "data_parallel/test_event_sources.py": "disaggregation",
    "data_parallel/test_pooling.py": "pooling",
    "devmode/test_pooling.py": "pooling",
    "devmode/test_refused_messages.py": "anthropic",
    "devmode/test_refused_responses.py": "responses",
    "devmode/test_weight_versions.py": "disaggregation",
    "disaggregation/test_forms.py": "forms",
    "grpc/wire/test_faults.py": "faults",
    "journal/test_console.py": "console",
    "journal/test_forms.py": "forms",
    "kv_index/test_cache_groups.py": "cache_groups",
    "kv_index/wire/test_grpc.py": "grpc",
    "kv_offload/test_handoff.py": "handoff",
    "kv_offload/test_kv_index.py": "kv_index",
    "lab/drills/test_fault_flags.py": "faults",
    "llm/test_grpc.py": "grpc",
    "llm/test_rehearse.py": "lab",
    "openapi/test_kv_index.py": "kv_index",
    "openapi/test_responses.py": "responses",
    "rate_limits/test_console.py": "console",
    "recording/test_faults.py": "faults",
    "recording/test_fork.py": "scripts",
    "recording/test_imported_cassettes.py": "anthropic responses scripts",
    "recording/test_imported_scripts.py": "scripts",
    "recording/test_scripts.py": "scripts",
    "recording/wire/test_ways.py": "llm",
    "responses/test_forms.py": "forms",
    "sagemaker/test_pooling.py": "pooling",
    "scripts/test_journal.py": "journal",
    "scripts/test_plugins.py": "plugins",
    "scripts/test_pooling.py": "pooling",
    "scripts/test_responses.py": "responses",
    "sglang/test_forms.py": "forms",
    "sglang/test_kv_index.py": "kv_index",
    "sglang/test_ranks.py": "data_parallel",
    "tool_calls/test_messages.py": "anthropic",
    "tool_calls/test_responses.py": "responses",
}
"""File of tests -> the other extensions that it needs, separated by spaces."""
collect_ignore = [
    file for file, names in OTHER_EXTENSIONS.items() if not all(map(is_present, names.split()))
]
