"""What the page asks of a server in this process: knobs, requests, actions, the load generator."""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from app.core.engine.request import ScriptedReply
from app.core.settings import settings_table
from app.extensions.console import page
from app.extensions.console.application import Console
from app.extensions.console.bars import Origin
from app.extensions.console.details import MAX_SETTING_CHARACTERS, describe_choice, summarize
from app.extensions.console.frames import FIGURES
from app.extensions.console.page import FOLDER, SCRIPTS, STYLES
from tests.application import app_of, application, request
from tests.core.engine.harness import embedded_tokenizer
from tests.extensions.console.watched import WatchedEngine

TABLE = settings_table().rows

KEY = {"X-Admin-Key": "secret"}
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> \u202e &amp; \x00 ${7*7}"


def client(*flags: str) -> Any:
    return app_of("--console", "--force-dummy-tokenizer", *flags).test_client()


@pytest.fixture(scope="module")
def keyed() -> Any:
    return client(
        "--admin-key", "secret", "--inter-token-latency", "20ms", "--max-model-len", "512"
    )


def test_console_is_off_by_default() -> None:
    http_client = app_of("--force-dummy-tokenizer").test_client()
    for path in ("/console", "/console/main.js", "/admin/console/knobs", "/admin/console/stream"):
        assert http_client.get(path).status_code == 404


def test_admin_key_protects_the_data_but_not_the_page(keyed: Any) -> None:
    """A browser cannot send a key with the address that is typed: the page asks for it."""
    for path in ("stream", "knobs", "figures", "requests/1"):
        assert keyed.get(f"/admin/console/{path}").status_code == 401
        assert (
            keyed.get(f"/admin/console/{path}", headers={"X-Admin-Key": "wrong"}).status_code == 401
        )
    assert keyed.post("/admin/console/pause").status_code == 401
    assert keyed.get("/console").status_code == 200


def test_every_live_setting_has_a_console_control(keyed: Any) -> None:
    def knobs() -> dict[str, Any]:
        return {
            knob["name"]: knob for knob in keyed.get("/admin/console/knobs", headers=KEY).get_json()
        }

    assert knobs()["max-model-len"]["value"] == 512 and not knobs()["max-model-len"]["live"]
    assert "max-num-seqs" not in knobs(), "it is the default"
    live = {row.name: (row.help, row.kind.name) for row in TABLE if row.about.live}
    assert {
        name: (knob["help"], knob["kind"]) for name, knob in knobs().items() if knob["live"]
    } == live
    assert knobs()["inter-token-latency"]["value"] == "20ms"
    assert knobs()["admin-key"]["value"] == "***"
    keyed.post("/admin/config", json={"inter-token-latency": "35ms"}, headers=KEY)
    assert knobs()["inter-token-latency"]["value"] == "35ms"


def test_console_actions_are_available_without_the_development_routes() -> None:
    http_client = client()
    assert http_client.post("/pause").status_code == 404
    for action, state in (
        ("pause?mode=keep", "paused"),
        ("resume", "serving"),
        ("sleep?level=1&mode=keep", "sleeping"),
        ("wake_up", "serving"),
    ):
        assert http_client.post(f"/admin/console/{action}").status_code == 200
        assert http_client.get("/admin/console/figures").get_json()["state"] == state
    assert http_client.post("/admin/console/pause?mode=never").status_code == 400
    http_client.post("/admin/drain")
    assert http_client.get("/admin/console/figures").get_json()["state"] == "draining"


def test_console_shows_the_reason_of_each_rejected_request() -> None:
    app = app_of("--console", "--force-dummy-tokenizer", "--max-model-len", "16")
    console = next(member for member in app.middleware.members if isinstance(member, Console))
    console.observer.start()
    for data, status in ((b'{"model": "other", "prompt": "a"}', 404), (b"{", 400)):
        response = app.test_client().post(
            "/v1/completions", data=data, content_type="application/json"
        )
        assert response.status_code == status
    frame = console.observer.frame()
    reasons = [row[1] for row in frame.ended]
    assert [reason.partition(": ")[0] for reason in reasons] == ["status 404", "status 400"]
    assert "other" in reasons[0] and not any("\n" in reason for reason in reasons)
    assert frame.figures[FIGURES.index("refused")] == 2


@pytest.mark.parametrize(
    ("traceparent", "trace_id"),
    [
        (
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "4bf92f3577b34da6a3ce929d0e0e4736",
        ),
        ("00-<b>-00f067aa0ba902b7-01", ""),
        (f"00-{'a' * 10_000}-b-01", ""),
    ],
)
def test_long_request_texts_are_truncated_in_the_console(traceparent: str, trace_id: str) -> None:
    context = request(
        "/" + "p" * 10_000, "POST", {"traceparent": traceparent, "x-request-id": "r" * 10_000}
    )
    origin = Origin.from_context(context)
    assert origin.trace_id == trace_id
    assert len(origin.path) <= 128
    watched = WatchedEngine()
    watched.observer.bars.add_refused(context, origin, f"status 400: {'x' * 1000}")
    page = watched.frame()
    assert len(page.bars[1][1]) <= 128 and page.ended[1][1].startswith("status 400: x")
    assert len(page.ended[1][1]) <= 128 and page.figures["refused"] == 1


@pytest.mark.parametrize(
    ("make_value", "summary_start"),
    [
        (partial(ScriptedReply, passes=True), "{'passes': True}"),
        (partial(ScriptedReply, text="x" * 10**7, calls=()), "{'text': 'xxx"),
        (partial(dict.fromkeys, range(10**6), 0.5), "{0: 0.5, 1: 0.5"),
        (partial(list, [[[["deep"]]]]), "[[[[...]]]]"),
    ],
    ids=["struct", "long text", "many", "deep"],
)
def test_setting_value_of_any_size_has_a_short_summary(
    make_value: Callable[[], object], summary_start: str
) -> None:
    value = make_value()
    shown_value = summarize(value)
    assert isinstance(shown_value, str) and shown_value.startswith(summary_start)
    assert len(shown_value) <= MAX_SETTING_CHARACTERS


def test_request_details_contain_the_prompt_the_reply_and_the_settings() -> None:
    watched = WatchedEngine(slots=2, blocks=50, inter_token_latency=0.1)
    ids = embedded_tokenizer().encode(HOSTILE)
    watched.ask("a", prompt_ids=ids, max_tokens=30, stop=("x!",), seed=5)
    watched.frame(1.0)
    bar = watched.observer.bars.find(watched.page.number_of("a"))
    assert bar is not None
    bar.origin = Origin("/v1/completions", "key:12", "4bf92f3577b34da6a3ce929d0e0e4736")
    answer = describe_choice(bar, embedded_tokenizer())
    assert answer["prompt"] == embedded_tokenizer().decode(ids, skip_special_tokens=False)
    assert "<script>" in answer["prompt"]
    assert answer["tokens"] == watched.page.tokens[bar.number] > 5
    assert answer["reply"] == watched.harness.said("a")
    settings = answer["settings"]
    assert (settings["stop"], settings["seed"], settings["max_tokens"]) == ("['x!']", 5, 30)
    assert set(settings) == {"ignore_eos", "max_tokens", "seed", "stop"}, (
        "nothing of the server's own"
    )
    assert len(answer["blocks"]) >= 1
    assert answer["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    watched.frame(10)
    answer = describe_choice(bar, embedded_tokenizer())
    assert answer["outcome"]["reason"] == "length" and answer["blocks"] == []


IMPOSSIBLE = (
    b"", b"{", b"[]", b'{"rate": 0}', b'{"rate": 1e9}', b'{"rate": "x"}', b'{"seconds": 1e9}',
    b'{"unknown": 1}', b'{"prompt_tokens": 0}', b"\xff", b'{"rate": NaN}',
    b'{"prompt_tokens": 500, "output_tokens": 100}', b'{"groups": 2, "prompt_tokens": 20, "shared": 20}',
)  # fmt: skip


def test_load_generator_rejects_malformed_and_out_of_range_values(keyed: Any) -> None:
    for body in IMPOSSIBLE:
        answer = keyed.post(
            "/admin/console/load", data=body, content_type="application/json", headers=KEY
        )
        assert answer.status_code == 400, body
        assert "\n" not in answer.get_json()["error"]["message"]
    assert client("--task", "embed").post("/admin/console/load", json={}).status_code == 400


def test_page_files_are_smaller_than_210_kb() -> None:
    assert (
        sum((FOLDER / name).stat().st_size for name in ("index.html", *STYLES, *SCRIPTS)) < 210_000
    )


def test_page_loads_only_its_own_files_and_has_no_inline_code() -> None:
    html = (FOLDER / "index.html").read_text("utf-8")
    named = re.findall(r'(?:src|href)="([^"#][^"]*)"', html)
    assert set(named) == {f"console/{name}" for name in (*STYLES, *SCRIPTS)} | {"data:,"}
    for name in ("index.html", *SCRIPTS, *STYLES):
        text = (FOLDER / name).read_text("utf-8")
        assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text), name
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", html)


def test_page_files_have_a_content_security_policy_and_an_etag() -> None:
    http_client = application(page.routes()).test_client()
    for path in ("/console", "/console/main.js", "/console/console.css"):
        answer = http_client.get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert answer.status_code == 200
        assert (
            "default-src 'none'" in policy
            and "unsafe" not in policy
            and "script-src 'self'" in policy
        )
        tag = {"If-None-Match": answer.headers["ETag"]}
        assert http_client.get(path, headers=tag).status_code == 304
    for name in ("other.js", "index.htm", "..%2Fpage.py"):
        assert http_client.get(f"/console/{name}").status_code == 404
