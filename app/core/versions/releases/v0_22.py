"""Changes of vLLM 0.22 to chats and completions."""

from typing import Any

from app.core.protocol.coercion import JsonObject
from app.core.server.http.errors import ApiError, bad_request, internal
from app.core.versions.change import Answer, Change, Rules
from app.core.versions.older_requests import fields_of
from app.core.versions.paths import GENERATING

KEY_RULES = "app.core.server.middleware.api_keys.KeyRules"
GRPC = "/vllm.grpc.engine."
BATCHES = ("/v1/chat/completions/batch",)
EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"


def fail_without_words(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of an empty bad word, at which the engine fails."""
    if error.message.startswith("bad_words cannot contain an empty string"):
        return internal("")
    return None


def with_experts(answer: Any, request: JsonObject) -> None:
    """Adds the experts of the prompt."""
    if "choices" in answer:
        answer["prompt_routed_experts"] = None


def fail_without_messages(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of a batch with a conversation without messages."""
    conversations = request.get("messages") if isinstance(request, dict) else None
    is_empty = isinstance(conversations, list) and [] in conversations
    if is_empty and fields_of(error) == {"messages"}:
        return bad_request(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    return None


CHANGES = (
    Change(
        area="Errors",
        before="Only routes below `/v1` need an API key.",
        after="Routes below `/v2` and `/inference` need an API key, too.",
        forms=(Rules(KEY_RULES, {"guarded_prefixes": ("/v1", GRPC)}),),
        options=("api-key",),
    ),
    Change(
        area="Chat and completions",
        before="In vLLM 0.21, answers have `prompt_routed_experts`.",
        after="Answers have no `prompt_routed_experts`.",
        forms=(Answer(paths=GENERATING, whole=with_experts, since="0.21.0"),),
    ),
    Change(
        area="Chat and completions",
        before="An empty conversation of a batch fails at the chat template.",
        after="It does not fit the schema.",
        forms=(Answer(paths=BATCHES, failure=fail_without_messages),),
        routes=BATCHES,
    ),
    Change(
        area="Chat and completions",
        before="An empty string in `bad_words` fails with 500, without words.",
        after="It fails with 400.",
        forms=(Answer(paths=GENERATING, failure=fail_without_words),),
    ),
    Change(
        area="KV events",
        before="Stored blocks of KV events have neither `kv_cache_spec_kind` nor "
        "`kv_cache_spec_sliding_window`.",
        after="Stored blocks have these fields.",
        forms=(Rules(EVENT_RULES, {"layout": "0.20"}),),
        options=("kv-events-config",),
    ),
)
