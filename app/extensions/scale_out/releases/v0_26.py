"""What vLLM 0.26 changed in the routes of scale-out."""

from typing import Any

from app.core.versions.change import Answer, Change

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
        routes=RENDERED,
    ),
)
