"""Makes extract.json.gz: the parts of two versions of vLLM that test_version_diff.py reads.

    $ python -m tests.version_diff.extract FOLDER_OF_0.32.0 FOLDER_OF_0.33.0

The folders contain the package `vllm`, as in its source distributions. vLLM's license is
Apache-2.0, as ours. Comments are left out.
"""

import ast
import gzip
import json
import sys
from pathlib import Path

FILE = Path(__file__).with_name("extract.json.gz")
PROTOCOLS = "vllm/entrypoints/{}/protocol.py"
PARTS: dict[str, dict[str, tuple[str, ...]]] = {
    PROTOCOLS.format("openai/chat_completion"): {
        "ChatCompletionResponseChoice": (),
        "ChatCompletionStreamResponse": (),
        "ChatCompletionRequest": ("build_tok_params",),
    },
    PROTOCOLS.format("openai/responses"): {"ResponsesRequest": (), "ResponsesResponse": ()},
    PROTOCOLS.format("serve/engine"): {"OpenAIBaseModel": ()},
    PROTOCOLS.format("generate/structured_decisions"): {"StructuredDecisionRequest": ()},
    PROTOCOLS.format("anthropic"): {
        "translate_error_type": (),
        "_reject_tool_changes": (),
    },
    PROTOCOLS.format("scale_out/token_in_token_out"): {"GenerateRequest": (), "OutputMode": ()},
    "vllm/entrypoints/anthropic/serving.py": {
        "AnthropicServingMessages": ("message_stream_converter",)
    },
    "vllm/entrypoints/generate/beam_search/online.py": {"BeamSearchOnlineMixin": ("beam_search",)},
    "vllm/entrypoints/openai/decisions/api_router.py": {"router": (), "create_decision": ()},
    "vllm/entrypoints/openai/responses/utils.py": {
        "response_item_status": (),
        "build_response_output_items": (),
    },
    "vllm/entrypoints/scale_out/derender/serving.py": {
        "ServingDerender": ("derender_chat_response",)
    },
    PROTOCOLS.format("pooling/base"): {"PoolingBasicRequestMixin": ()},
    PROTOCOLS.format("pooling/token_embed"): {"TokenEmbeddingRequest": ()},
    "vllm/entrypoints/serve/elastic_ep/api_router.py": {"router": (), "is_scaling_elastic_ep": ()},
    "vllm/entrypoints/serve/profile/api_router.py": {"StartProfileRequest": ()},
    "vllm/config/__init__.py": {},
    "vllm/config/cache.py": {"CacheConfig": ()},
    "vllm/sampling_params.py": {"BeamSearchParams": ()},
    "vllm/v1/core/sched/scheduler.py": {"Scheduler": ("schedule", "update_from_output")},
    "vllm/v1/core/single_type_kv_cache_manager.py": {"SingleTypeKVCacheManager": ("cache_blocks",)},
    "vllm/v1/engine/core.py": {
        "EngineCoreProc": ("_reject_add_while_paused", "pause_generation", "process_input_sockets")
    },
    "vllm/v1/kv_offload/cpu/policies/lru.py": {"LRUCachePolicy": ("insert",)},
    "vllm/v1/metrics/loggers.py": {"PrometheusStatLogger": ("log_metrics_info",)},
}
"""Global names of each file, with the methods of classes that are kept; fields are kept, too."""


def extract(folder: Path) -> dict[str, str]:
    """Returns the parts of a version by their paths."""
    texts = {}
    for path, names in PARTS.items():
        file = folder / path
        if file.exists():
            module = ast.parse(file.read_text("utf-8"))
            module.body = [part for part in module.body if _is_kept(part, names)]
            texts[path] = ast.unparse(module)
    return texts


def _is_kept(statement: ast.stmt, names: dict[str, tuple[str, ...]]) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return True
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement.targets[0]) in names
    if isinstance(statement, ast.AnnAssign):
        return ast.unparse(statement.target) in names
    name = getattr(statement, "name", "")
    if isinstance(statement, ast.ClassDef) and name in names:
        statement.body = [
            part
            for part in statement.body
            if isinstance(part, ast.AnnAssign) or getattr(part, "name", "") in names[name]
        ] or [ast.Pass()]
    return name in names


def main() -> None:
    """Writes the file."""
    versions = {Path(folder).name: extract(Path(folder)) for folder in sys.argv[1:]}
    content = json.dumps(versions, indent=1).encode()
    FILE.write_bytes(gzip.compress(content, mtime=0))
    print(f"{FILE}: {len(content)} bytes of text, {FILE.stat().st_size} in the file")


if __name__ == "__main__":
    main()
