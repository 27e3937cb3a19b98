"""Changes of vLLM 0.26 to errors."""

from app.core.versions.change import Change, Rules

ORIGIN_RULES = "app.core.versions.origins.OriginRules"

CHANGES = (
    Change(
        area="Errors",
        before="An error that names no field has no headers for browsers of other origins.",
        after="Such an error has these headers.",
        forms=(Rules(ORIGIN_RULES, {"opens_rules": False}),),
        options=("allowed-origins",),
    ),
)
