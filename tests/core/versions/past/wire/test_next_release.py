"""A release that is newer than the code is played from its names in the history and one file."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from scripts.version_diff.history import text_of
from tests.running_server import ROOT, RunningServer, free_port, running_command
from vllm_facts.history import Lifetime, read_history
from vllm_facts.version import NEWEST, OF_CODE, PROVEN

NEXT = "0.99"
MADE_OF = ("app", "config", "vllm_facts", "gunicorn.conf.py", "wsgi.py")
PERIODS = [(NEXT, "")]
RELEASE_FILE = '''"""Changes of a made-up release."""

from app.core.versions.change import Change

CHANGES = (
    Change(area="Development", before="There is a route.", after="There is none.", routes=("/a",)),
)
'''
FLAGS = ("--tide-window", "3", "--enable-tide", "--tide-mode", "neap")
AFTER_THE_CODE = pytest.mark.parametrize("next_server", [OF_CODE], indirect=True)
"""The structs of the code have the new fields of its own version."""


def new_option(takes: str, kind: str, choices: tuple[str, ...] = ()) -> Lifetime:
    return Lifetime(
        periods=PERIODS,
        takes=[(NEXT, takes)],
        types=[(NEXT, kind)],
        choices={choice: [] for choice in choices},
    )


def new_family(kind: str, labels: str, buckets: str = "") -> Lifetime:
    return Lifetime(
        periods=PERIODS,
        kind=kind,
        labels=[(NEXT, labels)],
        buckets=[(NEXT, buckets)] if buckets else [],
        module="vllm/v1/metrics/loggers.py",
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the code, with the history and the file of the made-up release."""
    folder = tmp_path_factory.mktemp("next-release")
    for name in MADE_OF:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, folder)
    history = read_history()
    history.releases[NEXT] = [f"{NEXT}.0"]
    history.options["--tide-window"] = new_option("one", "int")
    history.options["--enable-tide"] = new_option("nothing", "bool")
    history.options["--tide-mode"] = new_option("one", "choice", ("neap", "spring"))
    history.schemas["ChatCompletionRequest"].fields["tide_level"] = PERIODS
    history.schemas["ChatCompletionResponse"].fields["tide_phase"] = PERIODS
    history.schemas["UsageInfo"].fields["tide_tokens"] = PERIODS
    history.schemas["ChatMessage"].fields["tide_id"] = PERIODS
    history.schemas["ChatMessage"].required["tide_id"] = []
    history.metrics["vllm:tide_seconds"] = new_family(
        "histogram", "model_name engine moon", "0.5 1.0"
    )
    history.metrics["vllm:tide_tokens"] = new_family("histogram", "model_name engine", "1-2-5")
    history.metrics["vllm:tides_total"] = new_family("counter", "model_name engine")
    history.schemas["ChatCompletionRequest"].fields["bad_words"] = [("", NEXT)]
    history.schemas["ChatCompletionRequest"].fields["seed"] = [("", NEXT)]
    history.schemas["ChatCompletionResponse"].fields["service_tier"] = [("", NEXT)]
    history.routes["GET /is_sleeping"].periods = [("0.8", NEXT)]
    (folder / "vllm_facts/history.json").write_bytes(text_of(history))
    releases = folder / "app/core/versions/releases"
    (releases / f"v{NEXT.replace('.', '_')}.py").write_text(RELEASE_FILE)
    return folder


@pytest.fixture(scope="module", params=[OF_CODE, NEXT], ids=["after-the-code", "of-the-code"])
def next_server(copy: Path, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """A server that plays the release, which is later than the version of the code, or is it."""
    port = free_port()
    version_file = copy / "vllm_facts/version.py"
    code = f'OF_CODE = "{request.param}"'
    version_file.write_text(re.sub('^OF_CODE = ".*"', code, version_file.read_text(), flags=re.M))
    # Without -B, a process of the test that has imported the code of this checkout would be forked.
    command = [sys.executable, "-B", "-m", "app", "serve", "Qwen/Qwen3-0.6B", *FLAGS]
    command += ["--vllm-version", NEXT, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--force-dummy-tokenizer", "--server-dev-mode", "true"]
    with running_command(command, port, {}, cwd=copy) as server:
        yield server


def refusal(copy: Path, version: str, *flags: str) -> str:
    words = [sys.executable, "-m", "app", "serve", "Qwen/Qwen3-0.6B", "--vllm-version", version]
    done = subprocess.run([*words, *flags], cwd=copy, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    return done.stderr.strip()


def test_first_line_names_the_release_and_the_proven_behavior(next_server: RunningServer) -> None:
    assert (
        f"vLLM {NEXT}.0 (names of {NEXT}, behavior as proven for {PROVEN[-1]})" in next_server.log()
    )
    answer = requests.get(f"{next_server.url}/version", timeout=20).json()
    assert answer == {"version": f"{NEXT}.0"}


@pytest.mark.parametrize(
    ("version", "flags", "error"),
    [
        (NEWEST, ("--enable-tide",), f"flag --enable-tide requires vLLM {NEXT}"),
        (NEXT, ("--tide-mode", "flood"), "--tide-mode: 'flood' must be one of neap, spring"),
        (NEXT, ("--tide-window", "wide"), "--tide-window: 'wide' must be a whole number"),
    ],
)
def test_options_are_checked_as_the_release_declares_them(
    copy: Path, version: str, flags: tuple[str, ...], error: str
) -> None:
    assert error in refusal(copy, version, *flags)


def test_fields_and_routes_of_the_release_are_documented(next_server: RunningServer) -> None:
    document = requests.get(f"{next_server.url}/openapi.json", timeout=20).json()
    schemas = document["components"]["schemas"]
    properties = schemas["ChatCompletionRequest"]["properties"]
    assert "bad_words" not in properties
    assert "stop_token_ids" in properties
    assert "/sleep" in document["paths"]
    assert "/is_sleeping" not in document["paths"]
    assert requests.get(f"{next_server.url}/is_sleeping", timeout=20).status_code == 404


@AFTER_THE_CODE
def test_new_fields_of_an_answer_are_null_unless_they_are_required(
    next_server: RunningServer,
) -> None:
    document = requests.get(f"{next_server.url}/openapi.json", timeout=20).json()
    schemas = document["components"]["schemas"]
    assert "tide_level" in schemas["ChatCompletionRequest"]["properties"]
    assert "tide_phase" in schemas["ChatCompletion"]["properties"]
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}
    url = f"{next_server.url}/v1/chat/completions"
    answer = requests.post(url, json=body, timeout=20).json()
    assert answer["tide_phase"] is None
    assert answer["usage"]["tide_tokens"] is None
    assert "tide_id" not in answer["choices"][0]["message"]
    stream = requests.post(url, json={**body, "stream": True}, timeout=20)
    assert "tide" not in stream.text
    assert stream.text.endswith("data: [DONE]\n\n")


def test_new_field_of_a_request_is_accepted(next_server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2, "tide_level": 3}
    answer = requests.post(f"{next_server.url}/v1/chat/completions", json=body, timeout=20)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 2


def test_fields_that_the_release_removed_are_ignored(next_server: RunningServer) -> None:
    body = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 2}
    url = f"{next_server.url}/v1/chat/completions"
    for removed in ({"bad_words": 5}, {"seed": "x"}):
        assert requests.post(url, json={**body, **removed}, timeout=20).status_code == 200
    assert requests.post(url, json={**body, "stop_token_ids": 5}, timeout=20).status_code == 400
    answer = requests.post(url, json=body, timeout=20).json()
    assert "service_tier" not in answer
    assert "system_fingerprint" in answer


def test_new_families_have_their_labels_and_buckets(next_server: RunningServer) -> None:
    lines = requests.get(f"{next_server.url}/metrics", timeout=20).text.splitlines()
    engine = 'engine="0"'
    model = 'model_name="Qwen/Qwen3-0.6B"'
    assert f"vllm:tides_total{{{engine},{model}}} 0.0" in lines
    for bound in ("0.5", "1.0", "+Inf"):
        labels = f'{engine},le="{bound}",{model},moon=""'
        assert f"vllm:tide_seconds_bucket{{{labels}}} 0.0" in lines
    bounds = [line for line in lines if line.startswith("vllm:tide_tokens_bucket")]
    known = [line for line in lines if line.startswith("vllm:request_prompt_tokens_bucket")]
    assert len(bounds) == len(known) > 3
    created = [line for line in lines if line.startswith("vllm:tides_created")]
    again = requests.get(f"{next_server.url}/metrics", timeout=20).text.splitlines()
    assert set(created) <= set(again)
    assert len(created) == 1
