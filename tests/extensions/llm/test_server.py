"""A server before a model that computes:

nothing is played, the engine alone has torch; SDKs before it.
"""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from app.extensions.llm.heartbeat import MAX_SILENCE_S
from app.extensions.llm.llm import LLM
from app.extensions.llm.sampling_params import SamplingParams
from scripts.surface import is_flag
from tests.conformance.clients import openai_client
from tests.conformance.recording import CASES, ENVIRONMENT, MORE_CASES, TOKENIZER, replay
from tests.extensions.llm.tiny import Shape, edit_config, make_model
from tests.hostile.raw_client import Wire, get, post, wait_until
from tests.hostile.waits import wait_for_running, wait_for_status
from tests.running_server import RunningServer, running_server

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
CHATS = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello there"}]}
ASKED: Any = HELLO | {"model": "tiny", "max_tokens": 12, "temperature": 0}
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
TRIES = 3
"""What a random model says may be half a character, an end, or a call that is whole by chance."""
LONG = HELLO | {"max_tokens": 700, "ignore_eos": True, "stream": True}


@contextmanager
def serving(
    model: Path | str, *flags: str, env: dict[str, str] | None = None
) -> Iterator[RunningServer]:
    words = (
        "--engine",
        "llm",
        "--model",
        str(model),
        "--served-model-name",
        "tiny",
        "--zmq-endpoint",
        "",
    )
    with running_server(*words, *flags, env=ONE_THREAD | (env or {})) as server:
        yield server


@pytest.fixture(scope="module")
def server(model: str) -> Iterator[RunningServer]:
    with serving(model, "--seed", "3", env={"VLLM_SERVER_DEV_MODE": "1"}) as server:
        yield server


def chat(server: RunningServer, **fields: Any) -> Any:
    answer = post(server.port, HELLO | fields, CHATS)
    assert answer.status == 200, answer.body
    return answer.json()


def children(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def has_torch(pid: int) -> bool:
    with suppress(OSError):  # it has just ended
        return "libtorch" in Path(f"/proc/{pid}/maps").read_text()
    return False


def engine_of(server: RunningServer) -> int:
    [pid] = [pid for pid in children(server.process.pid) if has_torch(pid)]
    return pid


def test_only_the_engine_process_imports_torch(
    server: RunningServer,
) -> None:
    chat(server, max_tokens=2)
    workers = children(server.process.pid) - {engine_of(server)}
    assert len(workers) == 1
    assert not any(map(has_torch, [server.process.pid, *workers]))
    assert get(server.port, "/v1/models").json()["data"][0]["max_model_len"] == 1024


def test_greedy_replies_of_the_server_equal_those_of_the_python_library(
    server: RunningServer, model: str
) -> None:
    prompt = [3, 14, 15, 92, 65]
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 24, "ignore_eos": True}
    token_ids = post(server.port, body | {"return_token_ids": True}).json()["choices"][0][
        "token_ids"
    ]
    with LLM(model, device="cpu") as llm:
        params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
        assert llm.generate_single(prompt, params)["token_ids"] == token_ids
    assert b"spec_decode" not in get(server.port, "/metrics").body


def test_seed_of_choice_i_is_the_request_seed_plus_i(server: RunningServer) -> None:
    fields_of_all = {
        "max_tokens": 12,
        "ignore_eos": True,
        "return_token_ids": True,
        "temperature": 1.0,
    }
    prompts = [[3, 14, 15], [92, 65]]

    def tokens(seed: int, n: int, **fields: object) -> list[list[int]]:
        body = fields_of_all | {"seed": seed, "n": n} | fields
        answer = post(server.port, body) if fields else post(server.port, HELLO | body, CHATS)
        return [choice["token_ids"] for choice in answer.json()["choices"]]

    for prompt in prompts:
        alone = [tokens(seed, 1, prompt=prompt)[0] for seed in (5, 6, 7)]
        assert tokens(5, 3, prompt=prompt) == alone and len(set(map(tuple, alone))) == 3
    together = tokens(6, 2, prompt=prompts)
    assert together == [tokens(seed, 1, prompt=prompt)[0] for prompt in prompts for seed in (6, 7)]
    assert tokens(5, 3) == [tokens(seed, 1)[0] for seed in (5, 6, 7)]


def test_openai_sdk_reads_chats_and_sorted_top_logprobs(
    server: RunningServer,
) -> None:
    with openai_client(server) as client:
        create = client.chat.completions.create
        whole = create(**ASKED)
        *chunks, last = create(**ASKED, stream=True, stream_options={"include_usage": True})
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert text == whole.choices[0].message.content
        assert last.usage == whole.usage and 0 < last.usage.completion_tokens <= 12
        logprobs = create(**ASKED, logprobs=True, top_logprobs=3).choices[0].logprobs
        assert logprobs and logprobs.content
        for token in logprobs.content:
            best = [other.logprob for other in token.top_logprobs]
            assert token.logprob == max(best) <= 0 and best == sorted(best, reverse=True)
        with pytest.raises(openai.BadRequestError, match="max_tokens"):
            create(**ASKED | {"max_tokens": 10**6})


def test_streamed_anthropic_message_equals_the_complete_message(server: RunningServer) -> None:
    with anthropic.Anthropic(
        base_url=server.url,
        auth_token="x",
        max_retries=0,
        timeout=20,
        _strict_response_validation=True,
    ) as client:
        fields = {name: ASKED[name] for name in ("model", "messages", "max_tokens")}
        greedy = fields | {"extra_body": {"temperature": 0}}
        whole = client.messages.create(**greedy)
        with client.messages.stream(**greedy) as stream:
            streamed = stream.get_final_message()
    blocks = [
        [(block.type, getattr(block, "text", "")) for block in message.content]
        for message in (whole, streamed)
    ]
    assert blocks[0] == blocks[1]
    assert whole.usage.output_tokens == streamed.usage.output_tokens > 0


def test_requests_of_a_killed_worker_are_aborted(server: RunningServer) -> None:
    [worker] = children(server.process.pid) - {engine_of(server)}
    with Wire(server.port) as wire:
        next(wire.post(LONG, CHATS).events())
        os.kill(worker, signal.SIGKILL)
    wait_until(lambda: bool(children(server.process.pid) - {engine_of(server), worker}))
    wait_for_status(server.port, 200)
    chat(server, max_tokens=2)
    wait_for_running(server.port, 0)


def test_killed_engine_is_replaced(server: RunningServer) -> None:
    engine_before = engine_of(server)
    with Wire(server.port) as wire:
        events = wire.post(LONG, CHATS).events()
        next(events)
        os.kill(engine_before, signal.SIGKILL)
        assert get(server.port, "/health").status == 503  # while the kernel still frees its memory
        assert post(server.port, LONG, CHATS).status == 503
        *_, last = events
    assert last["error"]["code"] == 500
    wait_for_status(server.port, 200)
    assert chat(server, max_tokens=4)["usage"]["completion_tokens"] == 4
    assert engine_of(server) != engine_before


def test_hanging_engine_is_unhealthy_until_it_continues(server: RunningServer) -> None:
    engine = engine_of(server)
    os.kill(engine, signal.SIGSTOP)
    wait_for_status(server.port, 503, limit_s=MAX_SILENCE_S + 20)
    os.kill(engine, signal.SIGCONT)
    wait_for_status(server.port, 200)
    assert chat(server, max_tokens=4)["usage"]["completion_tokens"] == 4
    assert engine_of(server) == engine


def test_truncated_weights_prevent_startup_with_a_one_line_error(
    model: str, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "broken")
    weights = tmp_path / "broken" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(RuntimeError, match="status 1") as ended, serving(tmp_path / "broken"):
        pass
    lines = [line for line in str(ended.value).splitlines() if "INFO" not in line]
    assert len(lines) == 2  # what the test says itself, and the server's line
    broken = tmp_path / "broken"
    assert lines[1].startswith(
        f"error: setting model: '{broken}' cannot be used by the llm engine:"
    )


@pytest.mark.shared
@pytest.mark.parametrize("cases", [CASES, MORE_CASES], ids=["first", "second"])
def test_responses_match_every_recorded_exchange_of_vllm(
    cases: Path, recorded_server: RunningServer
) -> None:
    report = ""
    left = [""]
    for _ in range(TRIES):
        report = replay(recorded_server.url, "--cases", str(cases), "--only", ",".join(left))
        left = re.findall(r"^(\w+): \d+ difference", report, re.M)
        if not left:
            break
    agreeing, _, exchanges, *_ = report.splitlines()[-1].split()
    assert agreeing == exchanges != "0", report


@pytest.fixture(scope="module")
def recorded_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Started as the recorded vLLM was, with a model of the same kind and tokenizer."""
    flags = ("seed=1", "max-model-len=2048", "max-num-seqs=8", "block-size=32")
    flags += ("enable-kvcache=true", "zmq-endpoint=tcp://127.0.0.1:5757")
    flags += ("enable-prompt-tokens-details=true", *filter(is_flag, ("enable-scale-out=true",)))
    make_model(model := tmp_path_factory.mktemp("tiny"), Shape("qwen3"), 4096)
    for file in TOKENIZER.iterdir():
        if file.name not in ("config.json", "generation_config.json"):
            shutil.copy(file, model)
    edit_config(model, max_position_embeddings=8192)
    with serving(model, *(f"--{flag}" for flag in flags), env=ENVIRONMENT) as server:
        yield server
