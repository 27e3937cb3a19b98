"""The remote tokenizer, against a real HTTP service that tokenizes with the embedded one."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat
from typing import Any, ClassVar

import pytest

from app.core.application import create_app
from app.core.settings import load
from app.core.text.base import ChatOptions, TokenIdError, TokenizerInputError, TokenizerServiceError
from app.core.text.huggingface import default_tokenizer
from app.extensions.render_service.tokenizer import RenderTokenizer
from tests.http_server import Handler, serving

TOKENIZER = default_tokenizer()


class Service(Handler):
    """A render service; a prompt that starts with `!` makes it misbehave."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    connections: ClassVar[set[int]] = set()

    def do_POST(self) -> None:
        body = json.loads(self.body())
        self.seen.append((self.path, body))
        self.connections.add(self.client_address[1])
        self.reply(*self.answer(body))

    def answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        prompt = body.get("prompt")
        if isinstance(prompt, str) and prompt.startswith("!"):
            status, text = prompt[1:].split(" ", 1)
            return int(status), text.encode()
        if self.path.endswith("/v1/completions/render"):
            prompts = [prompt] if isinstance(prompt, str) else prompt or []
            service_answer: Any = [
                {"token_ids": TOKENIZER.encode(each), "features": None} for each in prompts
            ]
        elif self.path.endswith("/v1/chat/completions/render"):
            options = ChatOptions(add_generation_prompt=body.get("add_generation_prompt", True))
            service_answer = {"token_ids": TOKENIZER.encode_chat(body["messages"], options)}
        else:
            service_answer = {"prompt": TOKENIZER.decode(body["tokens"], skip_special_tokens=False)}
        return 200, json.dumps(service_answer).encode()


@pytest.fixture
def service() -> Iterator[RenderTokenizer]:
    Service.seen.clear()
    Service.connections.clear()
    with serving(Service) as port:
        remote = RenderTokenizer(f"http://127.0.0.1:{port}/", model="tiny", timeout_s=5.0)
        yield remote
        remote.close()


def test_text_is_encoded_by_the_render_service(service: RenderTokenizer) -> None:
    assert service.encode("hello world") == TOKENIZER.encode("hello world")
    assert Service.seen == [
        (
            "/v1/completions/render",
            {"model": "tiny", "prompt": "hello world", "add_special_tokens": False},
        )
    ]
    texts = [f"text {n}" if n % 3 else "" for n in range(600)]
    assert service.encode_many(texts) == TOKENIZER.encode_many(texts)
    assert len(Service.seen) == 3, "many share a call"
    assert service.encode("") == []
    assert len(Service.connections) == 1


def test_chat_is_rendered_by_the_render_service(service: RenderTokenizer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    assert service.encode_chat(messages) == TOKENIZER.encode_chat(messages)
    assert Service.seen == [
        ("/v1/chat/completions/render", {"model": "tiny", "messages": messages})
    ]
    open_ended = ChatOptions(add_generation_prompt=False)
    assert service.encode_chat(messages, open_ended) == TOKENIZER.encode_chat(messages, open_ended)
    assert service.render_chat(messages) == TOKENIZER.render_chat(messages)


def test_token_texts_of_the_render_service_add_up_to_the_decoded_text(
    service: RenderTokenizer,
) -> None:
    text = "Well, this is (quite) short."
    ids = TOKENIZER.encode(text)
    assert service.decode(ids) == text
    pieces = service.pieces(ids)
    assert (len(pieces), "".join(pieces)) == (len(ids), text)
    assert pieces[:3] == ["Well", ",", " this"]
    few, many = TOKENIZER.encode(" antidisestablishment"), TOKENIZER.encode("a\n\n\n b")
    assert service.pieces(few) == [" antidisestablishment", *[""] * (len(few) - 1)]
    assert "".join(service.pieces(many)) == "a\n\n\n b"
    assert service.pieces([]) == []
    assert service.token_texts(TOKENIZER.encode("hello world")) == ["hello", " world"]


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        ("500 broken", "status 500: broken"),
        ("200 no json", "not valid JSON"),
        ("200 []", "got 0 responses for 1 prompts"),
        ('200 {"token_ids": "12"}', "the response contains no list of token_ids"),
        ('200 [{"token_ids": [1.5]}]', "the response contains no list of token_ids"),
    ],
)
def test_error_for_an_unusable_render_response_states_the_reason(
    service: RenderTokenizer, answer: str, complaint: str
) -> None:
    with pytest.raises(TokenizerServiceError, match=complaint):
        service.encode(f"!{answer}")


def test_rejection_of_a_text_by_the_render_service_raises_an_input_error(
    service: RenderTokenizer,
) -> None:
    with pytest.raises(TokenizerInputError, match="^too strange$"):
        service.encode('!400 {"error": {"message": "too strange", "code": 400}}')
    assert [
        service.encode(f"!200 {body}") for body in ('{"token_ids": [1]}', '[{"token_ids": [3]}]')
    ] == [
        [1],
        [3],
    ]


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    ("part", "limit"), [(IMAGE, "image"), ({"type": "text", "text": "x"}, "text")]
)
def test_text_and_image_time_limits_apply_to_a_silent_render_service(
    part: dict[str, object], limit: str
) -> None:
    limits = {"text": 20.0, "image": 20.0, limit: 0.05}
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        remote = RenderTokenizer(
            url, model="m", timeout_s=limits["text"], mm_timeout_s=limits["image"]
        )
        begun = time.monotonic()
        with pytest.raises(TokenizerServiceError, match="timed out"):
            remote.encode_chat([{"role": "user", "content": [part]}])
        assert time.monotonic() - begun < 10
        remote.close()


def test_unreachable_render_service_raises_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    remote = RenderTokenizer(f"http://127.0.0.1:{port}", model="m")
    with pytest.raises(TokenizerServiceError, match="out of reach"):
        remote.encode("x")
    remote.check_ids([0, 10**6])
    with pytest.raises(TokenIdError):
        remote.check_ids([3, -1])


@contextmanager
def saying(*pieces: bytes, pause_s: float = 0.0) -> Iterator[str]:
    """The address of a service that says this, over and over the last piece, until nobody listens."""

    def talk(server: socket.socket) -> None:
        with suppress(OSError):
            client, _ = server.accept()
            with client:
                client.recv(1 << 16)
                for piece in chain(pieces, repeat(pieces[-1])):
                    client.sendall(piece)
                    time.sleep(pause_s)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=talk, args=(server,), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


HEAD = b"HTTP/1.1 200 OK\r\n\r\n"


def test_endless_and_slow_responses_of_the_render_service_are_aborted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.extensions.render_service.tokenizer.MAX_RESPONSE_BYTES", 1 << 20)
    with (
        saying(HEAD, b" " * 65536) as url,
        pytest.raises(TokenizerServiceError, match="exceeds 1 MiB"),
    ):
        RenderTokenizer(url, model="m").encode("hello")
    with (
        saying(HEAD, b" ", pause_s=0.02) as url,
        pytest.raises(TokenizerServiceError, match="timed out"),
    ):
        RenderTokenizer(url, model="m", timeout_s=0.3).encode("hello")


class UnknownIds(Service):
    """A render service whose chats have an id that no vocabulary has."""

    def answer(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if "messages" in body:
            return 200, b'{"token_ids": [3, -1]}'
        return super().answer(body)


def test_chat_whose_rendered_tokens_are_out_of_vocabulary_is_an_error() -> None:
    with serving(UnknownIds) as port:
        app = create_app(load(["--render-url", f"http://127.0.0.1:{port}"], {}))
        chat = {"model": "understudy-tiny", "messages": [{"role": "user", "content": "Hello!"}]}
        answer = app.test_client().post("/v1/chat/completions", json=chat)
    assert answer.status_code == 400
    assert "Token id -1 is out of vocabulary" in answer.get_data(as_text=True)
