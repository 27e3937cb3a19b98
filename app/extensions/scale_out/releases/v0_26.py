"""Changes of vLLM 0.26 to the routes of scale-out."""

from typing import Any

from app.core.versions.change import Answer, Change, Rules

SCALE_OUT_RULES = "app.extensions.scale_out.rules.ScaleOutRules"
RENDERED = ("/v1/chat/completions/render", "/v1/completions/render")


def edit_rendered(answer: Any) -> None:
    """Leaves out the transfer of encodings."""
    for request in answer if isinstance(answer, list) else [answer]:
        request.pop("ec_transfer_params", None)


CHANGES = (
    Change(
        area="Scale-out",
        before="Rendered requests have no `ec_transfer_params`.",
        after="Rendered requests have `ec_transfer_params`.",
        forms=(Answer(paths=RENDERED, edit=edit_rendered),),
    ),
    Change(
        area="Development",
        before="`/abort_requests` needs `--tokens-only`.",
        after="The development mode has `/abort_requests`, too.",
        forms=(Rules(SCALE_OUT_RULES, {"aborts_in_dev_mode": False}),),
        routes=("/abort_requests",),
    ),
)
