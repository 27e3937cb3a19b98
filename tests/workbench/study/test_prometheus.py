"""Studies of a made-up Prometheus, whose counters are known functions of time."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.core.server.gunicorn.certificates import make_pair
from config.declaration import ConfigError
from tests.http_server import Handler, Server, serving
from tests.workbench.study.made_up import END_S, Fleet, Pod, error, handler_of
from workbench.study.command import run
from workbench.study.prometheus import clean_selector

END = "2026-01-02T00:00:00Z"
START_S = END_S - 7200
FLAGS = ("--end", END, "--range", "2h", "--selector", 'namespace="prod"')
Take = Callable[..., tuple[int, str]]


@pytest.fixture
def take(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Take:
    """Returns a function that takes a study of a server, and returns status and messages."""

    def run_take(handler: type[Handler], *flags: str, base: Sequence[str] = FLAGS) -> Any:
        with serving(handler) as port:
            words = ["take", "--prometheus", f"http://127.0.0.1:{port}", *base, *flags]
            status = run([*words, "--out", str(tmp_path / "study")])
        return status, capsys.readouterr().err

    return run_take


def read(folder: Path) -> dict[str, Any]:
    """Workload, fleet and provenance of a study."""
    return {
        "windows": yaml.safe_load((folder / "workload.yaml").read_text())["windows"],
        "fleet": yaml.safe_load((folder / "fleet.yaml").read_text()),
        "provenance": json.loads((folder / "provenance.json").read_text()),
        "measured": json.loads((folder / "measured.json").read_text()),
    }


def requests_of(pod: Pod, first_s: float, last_s: float) -> int:
    """Differences of a pod's counter between samples a minute apart, as a reader sees them."""
    total = 0
    last: tuple[float, int] | None = None
    time_s = first_s
    while time_s <= last_s:
        start_s = pod.start_of(time_s)
        if start_s is not None:
            count = pod.requests(start_s, time_s)
            if last is None:
                total += count if start_s > first_s else 0
            elif last[0] != start_s:
                total += count
            else:
                total += count - last[1]
            last = (start_s, count)
        time_s += 60
    return total


PODS = [
    Pod("steady", rate=2.0),
    Pod("restarted", rate=1.5, starts=(0.0, START_S + 3000.5)),
    Pod("came", starts=(START_S + 1000.5,)),
    Pod("went", end_s=START_S + 4000.0),
    Pod("silent", gaps=((START_S + 2000.0, START_S + 3500.0),)),
]


@pytest.mark.parametrize("pod", PODS, ids=[pod.name for pod in PODS])
def test_counts_are_the_differences_of_the_counters(pod: Pod, take: Take, tmp_path: Path) -> None:
    status, _ = take(handler_of(Fleet([pod])))
    assert status == 0
    study = read(tmp_path / "study")
    windows = study["windows"]
    requests = sum(window["requests"] for window in windows)
    assert requests == pytest.approx(requests_of(pod, START_S, END_S), abs=0.01)
    for window in windows:
        lengths = window["input_tokens"]
        if window["requests"] > 0:
            inside = sum(count for _, _, count in lengths["buckets"])
            assert inside == pytest.approx(window["requests"], abs=1.01)
            assert lengths["mean"] == pytest.approx(700)
            assert window["cached_share"] == pytest.approx(0.4, abs=1e-3)


def test_provenance_has_resets_gaps_and_pods_that_came_and_went(take: Take, tmp_path: Path) -> None:
    status, _ = take(handler_of(Fleet(PODS)))
    assert status == 0
    study = read(tmp_path / "study")
    provenance = study["provenance"]
    assert [each["pod"] for each in provenance["resets"]] == ["prod/restarted"]
    assert [each["pod"] for each in provenance["gaps"]] == ["prod/silent"]
    assert [each["pod"] for each in provenance["pods_that_came"]] == ["prod/came"]
    assert [each["pod"] for each in provenance["pods_that_went"]] == ["prod/went"]
    assert provenance["queries"][0].startswith("vllm:num_requests_running")
    assert [each["pods"] for each in study["fleet"]["pods_over_time"]] == [4, 5, 4, 5, 4]
    assert study["fleet"]["groups"][0]["measured"]["num_gpu_blocks"] == "9000"
    assert set(study["measured"]["pods"]) == {f"prod/{pod.name}" for pod in PODS}


def test_two_models_are_an_error_that_names_both(take: Take) -> None:
    fleet = Fleet([Pod("a", model="llama"), Pod("b", model="qwen")])
    status, message = take(handler_of(fleet))
    assert status == 1
    assert "2 models: llama, qwen" in message
    status, _ = take(handler_of(fleet), "--selector", 'model_name="qwen"')
    assert status == 0


def test_pods_that_two_jobs_scrape_are_an_error(take: Take) -> None:
    fleet = Fleet([Pod("a"), Pod("a", labels={"job": "other"})])
    status, message = take(handler_of(fleet))
    assert status == 1
    assert 'job="other"' in message
    status, _ = take(handler_of(fleet), "--selector", 'job="vllm"')
    assert status == 0


def test_prefill_and_decode_pods_are_groups_and_requests_count_once(
    take: Take, tmp_path: Path
) -> None:
    pods = [Pod("p", labels={"role": "prefill"}), Pod("d", labels={"role": "decode"})]
    status, _ = take(handler_of(Fleet(pods)), "--group-label", "role")
    assert status == 0
    study = read(tmp_path / "study")
    assert [group["role"] for group in study["fleet"]["groups"]] == ["prefill", "decode"]
    assert sum(window["requests"] for window in study["windows"]) == 14_400


def test_more_pods_than_a_study_has_are_one_line(
    take: Take, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.study.prometheus.MAX_PODS", 4)
    status, message = take(handler_of(Fleet(PODS)))
    assert status == 1
    assert "the selector has more than 4 pods" in message


@pytest.mark.parametrize(
    "end", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1969-12-31T00:00:00Z"]
)
def test_times_outside_of_the_clock_are_one_line(end: str, take: Take) -> None:
    status, message = take(handler_of(Fleet(PODS)), base=("--end", end, "--range", "2h"))
    assert status != 0
    assert "must be from 1970 to 5138" in message
    assert message.count("\n") == 1


def test_stale_data_are_a_warning(take: Take) -> None:
    status, message = take(handler_of(Fleet([Pod("a", end_s=START_S + 3600)])))
    assert status == 0
    assert "60 minutes older than the end of the range" in message


def test_token_and_password_are_sent(take: Take, tmp_path: Path) -> None:
    fleet = Fleet([Pod("a")])
    seen: list[str] = []

    class Guarded(handler_of(fleet)):  # type: ignore[misc]
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization", ""))
            if seen[-1]:
                super().do_GET()
            else:
                self.reply(401)

    status, message = take(Guarded)
    assert status == 1
    assert "use --bearer-token-file or --basic-auth-file" in message
    secret = tmp_path / "secret"
    secret.write_text("me:key\n")
    assert take(Guarded, "--bearer-token-file", str(secret))[0] == 0
    assert seen[-1] == "Bearer me:key"
    assert take(Guarded, "--basic-auth-file", str(secret))[0] == 0
    assert seen[-1] == "Basic bWU6a2V5"
    secret.write_bytes(b"\x00\xff")
    assert "must be a text" in take(Guarded, "--basic-auth-file", str(secret))[1]


def answering(status: int, body: bytes) -> type[Handler]:
    """A server with this answer."""

    class Answer(Handler):
        def do_GET(self) -> None:
            self.reply(status, body)

    return Answer


def matrix(values: str) -> bytes:
    """An answer with a series."""
    series = f'{{"metric":{{"model_name":"m","pod":"a"}},"values":{values}}}'
    return f'{{"status":"success","data":{{"resultType":"matrix","result":[{series}]}}}}'.encode()


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, b"<html>", "is not a Prometheus server"),
        (200, b"", "is not a Prometheus server"),
        (200, b"[" * 100_000, "is not a Prometheus server"),
        (200, b'{"status":"success"}', "status 200"),
        (
            200,
            b'{"status":"success","data":{"resultType":"vector","result":[]}}',
            "is not a Prometheus server",
        ),
        (200, matrix("[[1]]"), "is not a Prometheus server"),
        (200, matrix('[[1e400,"1"]]'), "is not a Prometheus server"),
        (200, matrix('[[1e12,"1"]]'), "is not a Prometheus server"),
        (200, matrix('[[-1,"1"]]'), "is not a Prometheus server"),
        (200, b'{"status":"success","data":{"resultType":"matrix","result":[]}}', "has no vllm:"),
        (200, matrix(f'[[{START_S},"NaN"]]'), "no histogram"),
        (400, error("parse error:\nunexpected"), "parse error: unexpected"),
        (500, b"oops", "status 500"),
        (302, b"", "status 302"),
        (503, b"", "returned status 503 2 times"),
    ],
)
def test_failing_servers_are_one_line(status: int, body: bytes, reason: str, take: Take) -> None:
    exit_status, message = take(answering(status, body))
    assert exit_status == 1
    assert reason in message
    assert message.count("\n") == 1


def test_slow_and_huge_answers_are_one_line(take: Take, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Handler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            self.wfile.write(b"[")
            self.wfile.flush()
            self.rfile.read(1)

    status, message = take(Endless, "--timeout", "1s")
    assert status == 1
    assert "use a longer --timeout, or a shorter --range" in message
    monkeypatch.setattr("workbench.study.prometheus.MAX_RESPONSE_BYTES", 1 << 20)
    status, message = take(answering(200, b" " * (2 << 20)))
    assert status == 1
    assert "the response is larger than 1 MiB" in message


def test_absent_server_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["take", "--prometheus", "http://127.0.0.1:9", "--out", str(tmp_path / "s")]
    assert run(words) == 1
    message = capsys.readouterr().err
    assert "cannot be read" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "matchers"),
    [
        ("", ""),
        ('{a="b"}', 'a="b"'),
        ('a="b",c=~"d|e",', 'a="b",c=~"d|e"'),
        ("a='}'", "a='}'"),
    ],
)
def test_selectors_may_have_braces(text: str, matchers: str) -> None:
    assert clean_selector(text) == matchers


@pytest.mark.parametrize("text", ["up", 'up{a="b"}', 'a="b"} or {c="d"', "a=", '"', "{" * 10_000])
def test_selectors_with_more_than_matchers_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError, match="--selector must have the form"):
        clean_selector(text)


def test_certificates_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate = tmp_path / "certificate.pem"
    key = tmp_path / "key.pem"
    for path, content in zip((certificate, key), make_pair(("localhost",)), strict=True):
        path.write_bytes(content)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with Server(("127.0.0.1", 0), handler_of(Fleet([Pod("a")]))) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            url = f"https://localhost:{server.server_port}"
            words = ["take", "--prometheus", url, *FLAGS, "--out", str(tmp_path / "study")]
            assert run(words) == 1
            message = capsys.readouterr().err
            assert "TLS failed" in message
            assert "see --ca-file" in message
            assert run([*words, "--ca-file", str(certificate)]) == 0
            assert run([*words, "--ca-file", str(tmp_path / "none")]) == 1
            assert "--ca-file" in capsys.readouterr().err
        finally:
            server.shutdown()
