"""Changes of vLLM 0.11.1 to the reports of the load."""

from app.core.versions.change import Change, Rules

RULES = "app.extensions.load_reports.rules.LoadReportRules"
CHANGES = (
    Change(
        area="Chat and completions",
        before="The header `endpoint-load-metrics-format` is ignored.",
        after="The header asks for the load of the server in a header of the answer.",
        forms=(Rules(RULES, {"reports": False}),),
        routes=("/v1/chat/completions", "/v1/completions"),
    ),
)
