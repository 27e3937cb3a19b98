"""What holds where a request says nothing: the model's own generation_config.json, as in vLLM."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from app.core.engine.sampling import Sampling
from tests.extensions.llm.remote.served import Peer, new_peer, served
from tests.hostile.raw_client import post
from tests.running_server import RunningServer

CHATS = "/v1/chat/completions"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}]}
TOLD: dict[str, Any] = {
    "temperature": 0.6,
    "top_p": 0.95,
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.5,
}


@pytest.fixture
def peer(tmp_path: Path) -> Peer:
    peer = new_peer(tmp_path / "model")
    write(peer.folder, TOLD | {"max_new_tokens": 7, "do_sample": True, "bos_token_id": None})
    return peer


def write(folder: Path, content: object) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "generation_config.json").write_text(json.dumps(content))


def ordered(server: RunningServer, peer: Peer, **fields: Any) -> tuple[Sampling, int]:
    answer = post(server.port, HELLO | fields, CHATS)
    assert answer.status == 200, answer.body
    sampling = msgspec.convert(peer.last["sampling"], Sampling)
    ids = frozenset(sampling.stop_token_ids)
    shown = msgspec.structs.replace(sampling, max_tokens=None, stop_token_ids=ids)
    return shown, peer.last["max_tokens"]


def test_generation_config_of_the_model_sets_the_sampling_defaults(peer: Peer) -> None:
    with served(peer) as server:
        for way in ({}, {"n": 1, "top_logprobs": None}):  # the fast way, and the general one
            assert ordered(server, peer, **way) == (Sampling(**TOLD), 7)
        defaults = {
            "temperature": 0.1,
            "top_p": 0.2,
            "top_k": 3,
            "min_p": 0.4,
            "repetition_penalty": 1.1,
        }
        assert ordered(server, peer, **defaults, max_tokens=5) == (Sampling(**defaults), 5)


def test_generation_config_setting_selects_the_sampling_defaults(
    peer: Peer, tmp_path: Path
) -> None:
    write(tmp_path / "other", {"temperature": 0.3})
    with served(peer, generation_config=str(tmp_path / "other")) as server:
        assert ordered(server, peer)[0] == Sampling(temperature=0.3)
    with served(
        peer, generation_config="vllm", override_generation_config='{"top_k": 5}'
    ) as server:
        assert ordered(server, peer)[0] == Sampling(top_k=5)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": "much"}, "top_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ([], "generation_config.json"),
    ],
)
def test_invalid_generation_config_prevents_startup_with_a_one_line_error(
    peer: Peer, content: object, reason: str
) -> None:
    write(peer.folder, content)
    with (
        pytest.raises(
            RuntimeError, match=rf"error: setting generation-config: .*{reason}"
        ) as ended,
        served(peer),
    ):
        pass
    assert "Traceback" not in str(ended.value)
