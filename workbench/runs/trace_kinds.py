"""The answer to a file that is no known trace: the formats that it resembles."""

from collections.abc import Iterable, Mapping

from workbench.runs.exports import VLLM_REQUIRED

KINDS: Mapping[str, tuple[str, ...]] = {
    "CSV of this project": ("arrival_s", "input_tokens", "output_tokens"),
    "Azure LLM inference": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "BurstGPT": ("Timestamp", "Request tokens", "Response tokens"),
    "Mooncake or Bailian": ("timestamp", "input_length", "output_length", "hash_ids"),
    "Dynamo request trace": ("schema", "event_type", "request", "event_time_unix_ms"),
    "OpenTelemetry spans (OTLP)": ("resourceSpans",),
    "vllm bench serve --save-detailed": (*VLLM_REQUIRED, "input_lens", "output_lens"),
    "GuideLLM report": ("benchmarks",),
    "AIPerf profile_export.jsonl": ("metadata", "metrics"),
    "AgentX (Weka)": ("requests", "block_size"),
    "inference-perf specification": ("load", "data"),
}
"""Names of columns or keys of each format."""
MAX_NAMES = 12
MAX_LENGTH = 40


def unknown_trace(path: str, names: Iterable[str]) -> str:
    """Returns the message for a file with these columns or keys."""
    written = [str(name)[:MAX_LENGTH] for name in names]
    lowered = {name.lower() for name in written}
    shared: list[tuple[int, str]] = []
    for kind, columns in KINDS.items():
        missing = [name for name in columns if name.lower() not in lowered]
        if len(missing) < len(columns):
            description = f"{kind} (which also has {', '.join(missing)})" if missing else kind
            shared.append((len(columns) - len(missing), description))
    shared.sort(key=_count, reverse=True)
    listed = ", ".join(written[:MAX_NAMES]) or "none"
    message = f"{path} has no known format; its columns or keys are {listed}"
    if shared:
        message += f"; it resembles {'; '.join(description for _, description in shared[:3])}"
    else:
        message += f"; it resembles none of {', '.join(KINDS)}"
    return f"{message}; name its columns with --trace-columns"


def _count(kind: tuple[int, str]) -> int:
    return kind[0]
