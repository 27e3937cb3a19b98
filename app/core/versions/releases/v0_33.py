"""Changes of vLLM 0.33 to chats, completions, metrics and the scheduler."""

from app.core.versions.change import Absent, Change, Rules

REQUESTS_RULES = "app.core.protocol.validation.RequestRules"
PAUSE_RULES = "app.core.engine.sleep.PauseRules"
SCHEDULER_RULES = "app.core.engine.batch.SchedulerRules"
CHANGES = (
    Change(
        area="Chat and completions",
        before="Responses do not contain the versions of the weights.",
        after="Requests have `return_weight_versions`. Choices have `weight_versions`, null by "
        "default. In a streamed chat, only the last chunk of a choice has this field; in a "
        "streamed completion, all chunks do.",
        routes=("/v1/chat/completions", "/v1/completions"),
    ),
    Change(
        area="Chat and completions",
        before="Chunks of streams have no `kv_transfer_params`.",
        after="Chunks of streams end with `kv_transfer_params`; the role chunk of a chat does not.",
        routes=("/v1/chat/completions", "/v1/completions"),
        options=("kv-transfer-config",),
    ),
    Change(
        area="Development",
        before="Requests that arrive during a pause wait.",
        after="Requests that arrive during a pause in `abort` or `wait` mode fail with 503. "
        "Streams fail with one event after their 200. In `keep` mode, requests wait.",
        forms=(Rules(PAUSE_RULES, {"refuses_requests": False}),),
        routes=("/pause",),
        options=("enable-sleep-mode",),
    ),
    Change(
        area="Chat, completions and responses",
        before="A null for `skip_special_tokens` is an error.",
        after="A null for `skip_special_tokens` means the default.",
        forms=(Absent(nulls=("skip_special_tokens",)),),
        routes=("/v1/chat/completions", "/v1/completions", "/v1/responses"),
    ),
    Change(
        area="Chat and completions",
        before="A beam search ignores `allowed_token_ids`.",
        after="A beam search with `allowed_token_ids` is an error.",
        forms=(Rules(REQUESTS_RULES, {"rejects_beam_token_ids": False}),),
        routes=("/v1/chat/completions", "/v1/completions"),
    ),
    Change(
        area="Chat and completions",
        before="A chat with `truncate_prompt_tokens: -1` and without a token limit fills the whole "
        "context with the prompt, which is an error.",
        after="One token of the context is reserved for the reply.",
        forms=(Rules(REQUESTS_RULES, {"reserves_reply_token": False}),),
        routes=("/v1/chat/completions",),
    ),
    Change(
        area="Scheduler",
        before="`--prefill-schedule-interval` has no effect on a single engine.",
        after="`--prefill-schedule-interval N` leaves N - 1 steps without prompts between two with "
        "prompts while other requests are generating and none are waiting.",
        forms=(Rules(SCHEDULER_RULES, {"spaces_prefill": False}),),
        options=("prefill-schedule-interval",),
    ),
    Change(
        area="Scheduler",
        before="With priority scheduling, a step ends at a request that preempts itself.",
        after="Requests after it still receive their tokens.",
        forms=(Rules(SCHEDULER_RULES, {"passes_self_preempted": False}),),
        options=("scheduling-policy",),
    ),
    Change(
        area="Scheduler",
        before="A request whose last token is in progress does not count for `--max-loras`.",
        after="The request counts until it ends.",
        forms=(Rules(SCHEDULER_RULES, {"holds_last_adapters": False}),),
        options=("enable-lora",),
    ),
    Change(
        area="Scheduler",
        before="Without asynchronous scheduling, the next step caches a block that right drafts "
        "fill.",
        after="The block is cached when the step of these drafts is over.",
        forms=(Rules(SCHEDULER_RULES, {"caches_drafts": False}),),
        options=(
            "speculative-config",
            "spec-method",
            "spec-model",
            "spec-tokens",
        ),
    ),
    Change(
        area="Scheduler",
        before="With Mamba layers, a request waits while a request whose prompt it repeats is in "
        "the steps after its prompt.",
        after="The request starts, and reuses the state at the end of the prompt.",
        forms=(Rules(SCHEDULER_RULES, {"shares_known_states": False}),),
        options=(
            "mamba-cache-mode",
            "mamba-block-size",
            "mamba-cache-dtype",
        ),
    ),
    Change(
        area="Scheduler",
        before="A preempted request stores no blocks that it has stored before, although the CPU "
        "tier may have evicted them.",
        after="The request stores missing blocks again. Of a running request, the CPU tier evicts "
        "the later blocks first.",
        forms=(Rules(SCHEDULER_RULES, {"offers_again": False}),),
        options=(
            "kv-offloading-size",
            "kv-transfer-config",
        ),
    ),
    Change(
        area="Metrics",
        before="`vllm:cache_config_info` has no `simple_cpu_offload_num_blocks` label.",
        after='The `simple_cpu_offload_num_blocks` label is "None".',
        forms=(Absent(labels=("simple_cpu_offload_num_blocks",)),),
        routes=("/metrics",),
        options=(
            "kv-offloading-size",
            "kv-transfer-config",
        ),
    ),
    Change(
        area="Scheduler",
        before="A prompt whose image has no room in the encoder cache lets no other prompt start.",
        after="Other prompts can start before this one.",
        forms=(Rules(SCHEDULER_RULES, {"passes_waiting_items": False}),),
    ),
    Change(
        area="Scheduler",
        before="With `disable-chunked-mm-input`, an image that a step reaches at its first token "
        "is split.",
        after="The image waits for a step that has room for it.",
        forms=(Rules(SCHEDULER_RULES, {"splits_no_items": False}),),
        options=("disable-chunked-mm-input",),
    ),
)
