"""Changes of vLLM 0.26 to the routes of scale-out."""

from app.core.versions.change import Change, Rules

SCALE_OUT_RULES = "app.extensions.scale_out.rules.ScaleOutRules"
RENDERED = ("/v1/chat/completions/render", "/v1/completions/render")


CHANGES = (
    Change(
        area="Scale-out",
        before="Rendered requests have no `ec_transfer_params`.",
        after="Rendered requests have `ec_transfer_params`.",
        routes=RENDERED,
    ),
    Change(
        area="Development",
        before="`/abort_requests` needs `--tokens-only`.",
        after="The development mode has `/abort_requests`, too.",
        forms=(Rules(SCALE_OUT_RULES, {"aborts_in_dev_mode": False}),),
        routes=("/abort_requests",),
    ),
)
