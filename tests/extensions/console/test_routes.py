"""What the page asks of a server in this process: knobs, requests, actions, the load generator."""

import re
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
from tests.extensions.console.watched import Watched

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


def test_there_is_no_console_unless_it_is_switched_on() -> None:
    asked = app_of("--force-dummy-tokenizer").test_client()
    for path in ("/console", "/console/main.js", "/admin/console/knobs", "/admin/console/stream"):
        assert asked.get(path).status_code == 404


def test_the_admin_key_guards_what_is_told_and_not_the_page(keyed: Any) -> None:
    """A browser cannot send a key with the address that is typed: the page asks for it."""
    for path in ("stream", "knobs", "figures", "requests/1"):
        assert keyed.get(f"/admin/console/{path}").status_code == 401
        assert (
            keyed.get(f"/admin/console/{path}", headers={"X-Admin-Key": "wrong"}).status_code == 401
        )
    assert keyed.post("/admin/console/pause").status_code == 401
    assert keyed.get("/console").status_code == 200


def test_there_is_a_knob_for_every_live_setting_and_none_shows_a_secret(keyed: Any) -> None:
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


def test_actions_act_also_without_the_development_routes() -> None:
    asked = client()
    assert asked.post("/pause").status_code == 404
    for action, state in (
        ("pause?mode=keep", "paused"),
        ("resume", "serving"),
        ("sleep?level=1&mode=keep", "sleeping"),
        ("wake_up", "serving"),
    ):
        assert asked.post(f"/admin/console/{action}").status_code == 200
        assert asked.get("/admin/console/figures").get_json()["state"] == state
    assert asked.post("/admin/console/pause?mode=never").status_code == 400
    asked.post("/admin/drain")
    assert asked.get("/admin/console/figures").get_json()["state"] == "draining"


def test_a_refused_request_is_counted_with_its_reason() -> None:
    app = app_of("--console", "--force-dummy-tokenizer", "--max-model-len", "16")
    console = next(it for it in app.middleware.members if isinstance(it, Console))
    console.observer.start()
    for data, status in ((b'{"model": "other", "prompt": "a"}', 404), (b"{", 400)):
        asked = app.test_client().post(
            "/v1/completions", data=data, content_type="application/json"
        )
        assert asked.status_code == status
    frame = console.observer.frame()
    told = [row[1] for row in frame.ended]
    assert [reason.partition(": ")[0] for reason in told] == ["status 404", "status 400"]
    assert "other" in told[0] and not any("\n" in reason for reason in told)
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
def test_what_clients_choose_is_kept_short(traceparent: str, trace_id: str) -> None:
    context = request(
        "/" + "p" * 10_000, "POST", {"traceparent": traceparent, "x-request-id": "r" * 10_000}
    )
    origin = Origin.from_context(context)
    assert origin.trace_id == trace_id
    assert len(origin.path) <= 128
    it = Watched()
    it.observer.bars.add_refused(context, origin, f"status 400: {'x' * 1000}")
    page = it.frame()
    assert len(page.bars[1][1]) <= 128 and page.ended[1][1].startswith("status 400: x")
    assert len(page.ended[1][1]) <= 128 and page.figures["refused"] == 1


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (ScriptedReply(passes=True), "{'passes': True}"),
        (ScriptedReply(text="x" * 10**7, calls=()), "{'text': 'xxx"),
        (dict.fromkeys(range(10**6), 0.5), "{0: 0.5, 1: 0.5"),
        ([[[["deep"]]]], "[[[[...]]]]"),
    ],
    ids=["struct", "long text", "many", "deep"],
)
def test_a_setting_of_any_size_is_told_in_short(value: object, told: str) -> None:
    shown_value = summarize(value)
    assert isinstance(shown_value, str) and shown_value.startswith(told)
    assert len(shown_value) <= MAX_SETTING_CHARACTERS


def test_a_request_is_told_with_prompt_settings_tokens_and_blocks() -> None:
    it = Watched(slots=2, blocks=50, inter_token_latency=0.1)
    ids = embedded_tokenizer().encode(HOSTILE)
    it.ask("a", prompt_ids=ids, max_tokens=30, stop=("x!",), seed=5)
    it.frame(1.0)
    bar = it.observer.bars.find(it.page.number_of("a"))
    assert bar is not None
    bar.origin = Origin("/v1/completions", "key:12", "4bf92f3577b34da6a3ce929d0e0e4736")
    answer = describe_choice(bar, embedded_tokenizer())
    assert answer["prompt"] == embedded_tokenizer().decode(ids, skip_special_tokens=False)
    assert "<script>" in answer["prompt"]
    assert answer["tokens"] == it.page.tokens[bar.number] > 5
    assert answer["reply"] == it.harness.said("a")
    settings = answer["settings"]
    assert (settings["stop"], settings["seed"], settings["max_tokens"]) == ("['x!']", 5, 30)
    assert set(settings) == {"ignore_eos", "max_tokens", "seed", "stop"}, (
        "nothing of the server's own"
    )
    assert len(answer["blocks"]) >= 1
    assert answer["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    it.frame(10)
    answer = describe_choice(bar, embedded_tokenizer())
    assert answer["outcome"]["reason"] == "length" and answer["blocks"] == []


IMPOSSIBLE = (
    b"", b"{", b"[]", b'{"rate": 0}', b'{"rate": 1e9}', b'{"rate": "x"}', b'{"seconds": 1e9}',
    b'{"unknown": 1}', b'{"prompt_tokens": 0}', b"\xff", b'{"rate": NaN}',
    b'{"prompt_tokens": 500, "output_tokens": 100}', b'{"groups": 2, "prompt_tokens": 20, "shared": 20}',
)  # fmt: skip


def test_a_load_that_makes_no_sense_or_cannot_be_played_is_refused(keyed: Any) -> None:
    for body in IMPOSSIBLE:
        answer = keyed.post(
            "/admin/console/load", data=body, content_type="application/json", headers=KEY
        )
        assert answer.status_code == 400, body
        assert "\n" not in answer.get_json()["error"]["message"]
    assert client("--task", "embed").post("/admin/console/load", json={}).status_code == 400


def test_all_of_it_is_small() -> None:
    assert (
        sum((FOLDER / name).stat().st_size for name in ("index.html", *STYLES, *SCRIPTS)) < 200_000
    )


def test_it_asks_for_its_own_files_only_and_nothing_stands_within_the_page() -> None:
    html = (FOLDER / "index.html").read_text("utf-8")
    named = re.findall(r'(?:src|href)="([^"#][^"]*)"', html)
    assert set(named) == {f"console/{name}" for name in (*STYLES, *SCRIPTS)} | {"data:,"}
    for name in ("index.html", *SCRIPTS, *STYLES):
        text = (FOLDER / name).read_text("utf-8")
        assert not re.search(r"https?://|//[a-z]+\.|@import|url\(", text), name
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", html)


def test_files_have_a_policy_and_a_tag_and_others_are_not_served() -> None:
    asked = application(page.routes()).test_client()
    for path in ("/console", "/console/main.js", "/console/console.css"):
        answer = asked.get(path)
        policy = answer.headers["Content-Security-Policy"]
        assert answer.status_code == 200
        assert (
            "default-src 'none'" in policy
            and "unsafe" not in policy
            and "script-src 'self'" in policy
        )
        tag = {"If-None-Match": answer.headers["ETag"]}
        assert asked.get(path, headers=tag).status_code == 304
    for name in ("other.js", "index.htm", "..%2Fpage.py"):
        assert asked.get(f"/console/{name}").status_code == 404
