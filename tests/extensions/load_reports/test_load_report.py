"""The server's load in a response header, for proxies that request it (ORCA)."""

import pytest

from app.core.base.metrics.recorder import Recorder
from app.core.server.http.context import RequestContext
from app.core.server.http.response import EVENT_STREAM, Response, json_response
from app.core.server.http.route import post
from app.extensions.load_reports.middleware import FORMAT, PATHS, REPORT, LoadReports
from tests.application import application

AS_JSON = 'JSON {"named_metrics": {"num_requests_waiting": 3.0, "kv_cache_usage_perc": 0.25}}'
AS_TEXT = "TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.25"
CHAT = PATHS[0]


def answer(context: RequestContext) -> Response:
    """What the path of a request is made to say."""
    if "stream" in context.target:
        return Response([b"data: 1\n\n"], 200, None, EVENT_STREAM)
    return json_response({}, 400 if "wrong" in context.target else 200)


@pytest.mark.parametrize(
    ("path", "wanted", "report"),
    [
        *((path, "JSON", AS_JSON) for path in PATHS),
        *((CHAT, wanted, AS_TEXT) for wanted in ("TEXT", "text")),
        *((CHAT, wanted, None) for wanted in ("BIN", "", None)),
        *((CHAT + query, "JSON", None) for query in ("?stream", "?wrong")),
        ("/v1/responses", "JSON", None),
    ],
)
def test_chat_and_completion_responses_report_the_load_on_request(
    path: str, wanted: str | None, report: str | None
) -> None:
    recorder = Recorder("tiny", 2048, {})
    recorder.read_load = lambda: (0, 3, 0.25)
    routes = [post(each, answer) for each in (*PATHS, "/v1/responses")]
    client = application(routes, LoadReports(recorder.figures)).test_client()
    got = client.post(path, headers={} if wanted is None else {FORMAT: wanted})
    assert got.headers.get(REPORT) == report
