"""Each concept has one module: words that only this module may contain."""

import re
from pathlib import Path

import pytest

from tests.present import is_in_tree

ROOT = Path(__file__).parent.parent
EXPORTS = "workbench/runs/exports.py"
EVENTS = "app/core/server/http/event_stream.py"
STATISTICS = "app/shared/statistics.py"
RECORDER = "app/core/base/metrics/recorder.py"
REQUEST = "app/core/engine/request.py"
CACHES = "app/core/base/caches.py"
MODEL_SHAPE = "vllm_facts/model_shape.py"
HTTP_CLIENTS = {
    "app/core/base/http_pool.py",
    "app/shared/http_client.py",
    "vllm_understudy/http_client.py",
}
LIMITED_OWNERS = {
    "app/core/base/metrics/lora_requests.py",
    "app/core/engine/kvcache/block_pool.py",
    "app/core/engine/lora.py",
    "app/extensions/data_parallel/side_server.py",
    "app/extensions/handoff/leases.py",
    "app/extensions/kv_index/speculation.py",
    "app/extensions/kv_offload/cpu_tier.py",
    "app/extensions/kv_offload/disk_tier.py",
    "app/extensions/kv_offload/policies.py",
    "app/extensions/sagemaker/sessions.py",
}
"""Modules that order their entries themselves: eviction is what they model, or ends the entry.

Blocks and tiers evict as vLLM does; adapters, leases, sessions, connections, routed prompts, and series each
do more than forget. Caches, which could forget every entry, are in CACHES or
from cachetools.
"""
CONCEPTS = [
    (r'"(ttfts|itls)"', {EXPORTS}, "results of vllm bench serve"),
    (r"first_token_iteration", {EXPORTS}, "reports of GuideLLM"),
    (r"request_start_ns", {EXPORTS}, "exports of AIPerf"),
    (r'removeprefix\(b"data:|startswith\(b?"data:|DATA = b?"data:', set(), "server-sent events"),
    (r"splitlines\(\):\n +name, _, value", {EVENTS}, "server-sent events"),
    (r"def \w*quantiles?\(", {STATISTICS}, "quantiles"),
    (r"def error_message\(", {"app/core/base/error_body.py"}, "errors in a body"),
    (
        r"""(\["error"\]|get\("error"\S*\))(\["message"\]|.get\("message")""",
        {"vllm_understudy/rules.py"},  # Users' processes cannot import `app`.
        "errors in a body",
    ),
    (r"def (phases|_phases)\(self, arrival_s", {REQUEST}, "phases of a sequence"),
    (
        r"scheduled_s - (\w+\.)?queued_s|first\w*_s - (\w+\.)?scheduled_s\b",
        {RECORDER},
        "durations of phases",
    ),
    (r'outcome\.queued_s for outcome|choose\(min, "queued_s"', {REQUEST}, "moments of a request"),
    (r"1 << 64\b", {"app/shared/event_hashes.py"}, "hashes of 64 bits"),
    (r"\w+\(OrderedDict\[|class \w*(Memo|LimitedDict)\((dict|Generic)", {CACHES}, "caches"),
    (
        r"(popitem\(last=False\)|oldest\w* = next\(iter\(self\.|\(next\(iter\(self\._?\w+\)\)\))",
        LIMITED_OWNERS,
        "limits by age without cachetools",
    ),
    (r'"text_config"', {MODEL_SHAPE}, "the text model of a config.json"),
    (r"sliding_window_pattern", {MODEL_SHAPE}, "patterns of windows in a config.json"),
    (
        r"full_attention_interval",
        {MODEL_SHAPE},
        "patterns of linear attention in a config.json",
    ),
    (r'"layers_block_type"', {MODEL_SHAPE}, "layers of hybrid models in a config.json"),
    (
        r"(?m)^ *(import|from) (http\.client|urllib3\.connection)|urllib\.request|PoolManager\(",
        HTTP_CLIENTS,
        "HTTP clients",
    ),
    (r"output_token_times", {EXPORTS}, "reports of inference-perf"),
    (
        r"hub\(?\)?\.\w+(: \w+)? = |[sg]etattr\((gevent\.)?(get_)?hub|gr_context",
        {"app/core/base/clock/pause.py"},
        "the loop of a thread",
    ),
]
"""A regular expression of a concept's code, the files that may match it, and the concept."""


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    """Returns the text of each module of the application by its path."""
    texts = {}
    for folder in ("app", "config", "vllm_facts", "workbench", "vllm_understudy"):
        for path in (ROOT / folder).rglob("*.py"):
            texts[str(path.relative_to(ROOT))] = path.read_text(encoding="utf8")
    return texts


@pytest.mark.parametrize(("pattern", "files", "concept"), CONCEPTS)
def test_concept_has_one_module(
    pattern: str, files: set[str], concept: str, sources: dict[str, str]
) -> None:
    matching = {path for path, text in sources.items() if re.search(pattern, text)}
    assert matching == set(filter(is_in_tree, files)), f"modules that read or implement {concept}"
