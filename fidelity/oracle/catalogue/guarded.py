"""A server behind a key and a proxy: keys, CORS, request ids, a path in front of all routes."""

from fidelity.oracle.cases import JSON_HEADERS, MODEL, Area
from fidelity.oracle.catalogue.requests import (
    CHAT,
    CHAT_FIELDS,
    COMPLETION_FIELDS,
    COMPLETIONS,
    MESSAGES,
    QUESTION,
    RESPONSES,
)

KEY = "oracle-key"
"""As in the configuration."""
WITH_KEY = {**JSON_HEADERS, "Authorization": f"Bearer {KEY}"}
AREA = Area("keys", path=CHAT, fields=CHAT_FIELDS, configuration="guarded")
CORS = Area("cross-origin requests", path=CHAT, fields=CHAT_FIELDS, configuration="guarded")

for name, headers in {
    "right": WITH_KEY,
    "second": {**JSON_HEADERS, "Authorization": f"Bearer {KEY}-2"},
    "none": JSON_HEADERS,
    "wrong": {**JSON_HEADERS, "Authorization": "Bearer x"},
    "empty": {**JSON_HEADERS, "Authorization": "Bearer "},
    "small letters": {**JSON_HEADERS, "Authorization": f"bearer {KEY}"},
    "two spaces": {**JSON_HEADERS, "Authorization": f"Bearer  {KEY}"},
    "other scheme": {**JSON_HEADERS, "Authorization": f"Basic {KEY}"},
    "bare": {**JSON_HEADERS, "Authorization": KEY},
    "of Anthropic": {**JSON_HEADERS, "x-api-key": KEY},
}.items():
    AREA.case(f"{name} key", "Keys are checked as by vLLM.", headers=headers)
    AREA.case(
        f"{name} key for a message",
        "Keys are checked before the route.",
        path=MESSAGES,
        body={"model": MODEL, "max_tokens": 3, "messages": QUESTION},
        headers=headers,
    )
for path in (
    "/health",
    "/version",
    "/metrics",
    "/load",
    "/ping",
    "/v1/models",
    "/v1/nothing",
    "/nothing",
    "/docs",
    "/openapi.json",
    "/server_info",
    "/is_sleeping",
    "/oracle/v1/models",
    "/oracle/health",
    "/v2/nothing",
    "/inference/nothing",
):
    AREA.get(path, "Some routes need no key.", ignored=("paths", "components", "info"))
for path in ("/tokenize", "/invocations", "/sleep", "/pause", RESPONSES, COMPLETIONS):
    AREA.case(f"POST {path}", "Some routes need no key.", path=path, body=COMPLETION_FIELDS)
AREA.case(
    "below the root path",
    "Proxies may keep their prefix.",
    path=f"/oracle{CHAT}",
    headers=WITH_KEY,
)
AREA.case("preflight", "OPTIONS needs no key.", method="OPTIONS", body=None, headers={})
AREA.case("stream", "Usage is always sent.", {"stream": True}, headers=WITH_KEY)
AREA.case(
    "completion stream",
    "Usage is always sent.",
    path=COMPLETIONS,
    body={**COMPLETION_FIELDS, "stream": True},
    headers=WITH_KEY,
)
AREA.case(
    "request id",
    "It is sent back.",
    headers={**WITH_KEY, "X-Request-Id": "mine"},
)
AREA.case(
    "log probabilities above the limit",
    "The limit is a flag.",
    {"logprobs": True, "top_logprobs": 4},
    headers=WITH_KEY,
)
AREA.get("/load", "The load is tracked.", "GET /load again")

ORIGIN = "https://a.example"
for name, headers in {
    "allowed": {"Origin": ORIGIN},
    "other": {"Origin": "https://b.example"},
    "null": {"Origin": "null"},
}.items():
    CORS.case(f"{name} origin", "Browsers read these headers.", headers={**WITH_KEY, **headers})
    CORS.case(
        f"preflight of the {name} origin",
        "Browsers ask first.",
        method="OPTIONS",
        body=None,
        headers={
            **headers,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type",
        },
    )
    CORS.case(
        f"preflight of the {name} origin for DELETE",
        "Methods are a flag.",
        method="OPTIONS",
        body=None,
        headers={**headers, "Access-Control-Request-Method": "DELETE"},
    )
CORS.case(
    "origin without a key",
    "Errors have the headers, too.",
    headers={**JSON_HEADERS, "Origin": ORIGIN},
)
AREAS = (AREA, CORS)
