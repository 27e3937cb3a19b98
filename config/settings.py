"""Every setting of the server, declared once, by the room that it belongs to.

Flag and YAML key are the field's name with dashes, the environment variable is ``SIM_`` and the name in
capitals. Durations are seconds here.
"""

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from config.fields import rows, setting
from config.kinds import Duration
from config.rules import at_least, between, no_empty_items, not_above_share, not_empty, not_negative, positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The listening socket and the life of the process."""

    host: str = setting("0.0.0.0", help="Address to listen on.", rule=not_empty())
    port: int = setting(8000, help="TCP port to listen on.", rule=between(1, 65535))
    max_request_body_size_mb: int = setting(
        4, unit="MiB", help="Larger request bodies are answered with 413.", rule=between(1, 512)
    )
    startup_duration: Duration = setting(
        0.0, help="How long the server answers that it is not ready after its start.", rule=not_negative()
    )
    graceful_timeout: Duration = setting(
        30.0, help="How long running streams may go on after SIGTERM.", rule=not_negative()
    )
    read_timeout: Duration = setting(
        60.0, help="Time that a client has to deliver a whole request.", rule=positive()
    )
    write_timeout: Duration = setting(
        60.0, help="Time that a client may take no bytes before its stream is dropped.", rule=positive()
    )
    keep_alive_timeout: Duration = setting(
        75.0, help="How long an idle connection is kept open.", rule=not_negative()
    )
    worker_connections: int = setting(
        16384, unit="connections", help="Connections served at the same time.", rule=at_least(1)
    )
    pod_name: str = setting(
        "", env=("POD_NAME",), help="Sent as x-inference-pod, together with x-inference-port, when not empty."
    )
    pod_namespace: str = setting(
        "", env=("POD_NAMESPACE",), help="Sent as x-inference-namespace when not empty."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """The model that is played."""

    model: str = setting("understudy-tiny", help="Name of the base model.", rule=not_empty())
    served_model_name: tuple[str, ...] = setting(
        (),
        help="Names that requests may use, the first is shown in replies; the model's own name when empty.",
        rule=no_empty_items(),
    )
    max_model_len: int = setting(
        4096, unit="tokens", help="Length of the context: prompt and completion together.", rule=at_least(1)
    )
    vllm_version: str = setting("0.32.0", help="What GET /version answers.", rule=not_empty())

    @property
    def served_names(self) -> tuple[str, ...]:
        """Names that requests may use, never empty; the first is the one in replies."""
        return self.served_model_name or (self.model,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings:
    """How text becomes tokens."""

    tokenizer: str | None = setting(
        None,
        path=True,
        help="Folder, tokenizer.json file or Hugging Face name; the embedded tokenizer when empty.",
    )
    render_url: str | None = setting(
        None, help="Base URL of a vLLM render service that tokenizes instead of this process."
    )
    render_timeout: Duration = setting(
        30.0, help="Longest wait for an answer of the render service.", rule=positive()
    )
    force_dummy_tokenizer: bool = setting(
        False, help="Use the embedded tokenizer even when the model's own could be found."
    )
    hf_token: str | None = setting(
        None, env=("HF_TOKEN",), secret=True, help="Access token for the Hugging Face hub."
    )
    chat_template: str | None = setting(
        None, path=True, help="Jinja chat template, as a file or as its text; the tokenizer's own when empty."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """How many requests run and how many wait."""

    max_num_seqs: int = setting(
        256, unit="sequences", help="Sequences that run at the same time.", rule=at_least(1)
    )
    max_waiting_queue_length: int = setting(
        1000,
        unit="requests",
        help="Requests that may wait for a place; beyond it the answer is 429. 0 lets none wait.",
        rule=at_least(0),
    )
    max_num_queued_reqs: int | None = setting(
        None,
        unit="sequences",
        help="Sequences that may run and wait together; beyond it the answer is 503. Empty is no limit.",
        rule=at_least(0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplySettings:
    """What is said."""

    mode: Literal["random", "echo"] = setting(
        "random", help="Sample sentences of random length, or the text of the last message."
    )
    seed: int | None = setting(
        None, help="Seed of everything that is random; different at every start when empty."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySettings:
    """When it is said."""

    latency_calculator: Literal["", "constant", "per-token"] = setting(
        "",
        live=True,
        help="What the time to the first token is computed from: time-to-first-token (constant) or the "
        "prompt's length (per-token). Empty is constant if time-to-first-token or its deviation is set, "
        "per-token otherwise.",
    )
    inter_token_latency: Duration = setting(
        0.0, live=True, help="Time between two tokens of a reply.", rule=not_negative()
    )
    inter_token_latency_std_dev: Duration = setting(
        0.0,
        live=True,
        help="Standard deviation of inter-token-latency.",
        rule=(not_negative(), not_above_share(30, of="inter_token_latency")),
    )
    time_to_first_token: Duration = setting(
        0.0, live=True, help="Time from admission to the first token.", rule=not_negative()
    )
    time_to_first_token_std_dev: Duration = setting(
        0.0,
        live=True,
        help="Standard deviation of time-to-first-token.",
        rule=(not_negative(), not_above_share(30, of="time_to_first_token")),
    )
    prefill_overhead: Duration = setting(
        0.0, live=True, help="Constant part of the prefill (per-token calculator).", rule=not_negative()
    )
    prefill_time_per_token: Duration = setting(
        0.0,
        live=True,
        help="Prefill time of each prompt token that is not cached (per-token calculator).",
        rule=not_negative(),
    )
    prefill_time_std_dev: Duration = setting(
        0.0, live=True, help="Standard deviation of the prefill (per-token calculator).", rule=not_negative()
    )
    time_factor_under_load: float = setting(
        1.0,
        live=True,
        help="Latencies are this many times longer when all max-num-seqs places are taken, and grow linearly "
        "from 1 before.",
        rule=at_least(1.0),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """What the replies carry."""

    enable_request_id_headers: bool = setting(False, help="Answer with an X-Request-Id header.")
    enable_prompt_tokens_details: bool = setting(False, help="Report cached prompt tokens in usage.")
    enable_force_include_usage: bool = setting(
        False, help="End every stream with its usage, whether the request asks for it or not."
    )
    enable_server_load_tracking: bool = setting(False, help="Count the running requests for GET /load.")
    max_logprobs: int = setting(
        20, help="Most log probabilities that a request may ask for; -1 is no limit.", rule=at_least(-1)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is logged, and how."""

    log_level: Literal["debug", "info", "warning", "error", "critical"] = setting(
        "info", help="Least severe level that is logged."
    )
    log_format: Literal["text", "json"] = setting("text", help="Lines for people or JSON objects.")
    access_log: bool = setting(False, help="Log a line for each request when its answer has been sent.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings, one attribute per room."""

    server: ServerSettings = field(default_factory=ServerSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    scheduling: SchedulingSettings = field(default_factory=SchedulingSettings)
    reply: ReplySettings = field(default_factory=ReplySettings)
    latency: LatencySettings = field(default_factory=LatencySettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def dump(self, masked: bool = True) -> dict[str, Any]:
        """Setting name to value for logs: durations as Go style text, lists as lists, secrets as ``***``."""
        shown: dict[str, Any] = {}
        for room in (getattr(self, group.name) for group in fields(self)):
            shown |= {row.name: row.shown(getattr(room, row.attribute), masked) for row in rows(type(room))}
        return shown
