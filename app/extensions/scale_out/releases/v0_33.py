"""Changes of vLLM 0.33 to the routes of scale-out."""

from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Change, Rules

SCALE_OUT_RULES = "app.extensions.scale_out.rules.ScaleOutRules"


def without_derender_mode() -> JsonObject:
    """Returns the type of requests without the output mode derender."""
    from app.extensions.scale_out.protocol import TokensOrTextRequest

    return {"request_type": TokensOrTextRequest}


CHANGES = (
    Change(
        area="Scale-out",
        before="Rendered requests do not describe how the reply is parsed. `extra_args` contains "
        "the transfer parameters.",
        after="Rendered requests have `parse_context`, null for completions and responses, and "
        "repeat `return_token_ids`. `kv_transfer_params` and `ec_transfer_params` are fields.",
        forms=(Rules(SCALE_OUT_RULES, {"describes_parsing": False}),),
        routes=("/v1/chat/completions/render", "/v1/completions/render", "/inference/v1/generate"),
    ),
    Change(
        area="Scale-out",
        before="`/inference/v1/generate` has the `tokens` and `text` output modes.",
        after="The `derender` output mode returns the parsed message of each choice. It requires "
        "`parse_context` if the server has a parser and cannot be streamed.",
        forms=(Rules(SCALE_OUT_RULES, without_derender_mode),),
        routes=("/inference/v1/generate",),
    ),
    Change(
        area="Scale-out",
        before="Derendered responses keep the `finish_reason` of the tokens, the token or string "
        "that stopped the reply, all calls and all alternatives of log probabilities.",
        after="Derendered responses match generated ones: calls, `finish_reason`, alternatives and "
        "token IDs follow the request, and texts end before the stop. Streams of requests with "
        "`stop` are rejected.",
        forms=(Rules(SCALE_OUT_RULES, {"derenders_as_generated": False}),),
        routes=("/v1/chat/completions/derender", "/v1/completions/derender"),
    ),
)
