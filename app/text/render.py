"""A tokenizer behind HTTP: a vLLM server or its render service (simulator.md section 6.5)."""

import re
import time
from collections.abc import Mapping, Sequence

import gevent
import msgspec
import urllib3

from app.base.clock.pause import wait_off_hub
from app.text.base import (
    PLAIN_CHAT,
    ChatOptions,
    Message,
    TextCheck,
    TokenIdError,
    Tokenizer,
    TokenizerInputError,
    TokenizerServiceError,
    not_unicode,
)

CONNECTIONS = 32
"""Connections kept open between calls; further ones are closed after their call."""
PROMPTS_PER_CALL = 256
"""Most prompts per call; vLLM refuses more than 1024."""
MOST_BYTES = 64 << 20
"""Most bytes of a response: 8 million token ids."""
ONCE_MORE = urllib3.Retry(
    connect=0, read=1, redirect=False, status=0, other=0, allowed_methods=None
)
"""Repeats a call when the service has just closed a kept connection: the call changes nothing."""
JSON = {"Content-Type": "application/json"}
WORD = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")


class RenderTokenizer(Tokenizer):
    """The `Tokenizer` of the service at the base address `url`, which knows the model as `model`.

    The service returns ids without the text of each. So `pieces` splits the text at words and
    signs, and adapts the number of parts to the number of ids. A call may take `timeout_s` seconds
    to the last byte of its response; one with images `mm_timeout_s`, by default the same.
    """

    def __init__(
        self, url: str, *, model: str, timeout_s: float = 5.0, mm_timeout_s: float | None = None
    ) -> None:
        self.name = url.rstrip("/")
        self._model = model
        self._pool = urllib3.PoolManager(maxsize=CONNECTIONS, retries=ONCE_MORE)
        self._timeout_s = timeout_s
        self._mm_timeout_s = timeout_s if mm_timeout_s is None else mm_timeout_s

    def close(self) -> None:
        self._pool.clear()

    def check_ids(self, ids: Sequence[int]) -> None:
        """Refuses negative ids only, as the vocabulary is unknown."""
        if ids and min(ids) < 0:
            raise TokenIdError(f"Token id {min(ids)} is outside the vocabulary.")

    def encode_many(
        self, texts: Sequence[str], add_special_tokens: bool = False
    ) -> list[list[int]]:
        """Sends no empty texts, which the service refuses."""
        asked = [text for text in texts if text]
        answers: list[list[int]] = []
        for start in range(0, len(asked), PROMPTS_PER_CALL):
            prompts = asked[start : start + PROMPTS_PER_CALL]
            prompt = prompts[0] if len(prompts) == 1 else prompts
            fields = {"prompt": prompt, "add_special_tokens": add_special_tokens}
            answers += self._render("/v1/completions/render", fields, count=len(prompts))
        ids = iter(answers)
        return [next(ids) if text else [] for text in texts]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Never skips special tokens, as the service shows them."""
        if not ids:
            return ""
        answer = self._post("/detokenize", {"tokens": list(ids)})
        text = answer.get("prompt") if isinstance(answer, dict) else None
        if not isinstance(text, str):
            raise self._unusable("/detokenize", "no prompt text")
        return text

    def pieces(self, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
        if not ids:
            return []
        words = WORD.findall(self.decode(ids, skip_special_tokens))
        last = len(ids) - 1
        return [*words[:last], *[""] * (last - len(words)), "".join(words[last:])]

    def encode_chat(
        self,
        messages: Sequence[Message],
        options: ChatOptions = PLAIN_CHAT,
        check: TextCheck | None = None,
    ) -> list[int]:
        """Sends only the options that differ from the defaults."""
        fields: dict[str, object] = {"messages": list(messages)}
        for name in ChatOptions.__dataclass_fields__:
            value = getattr(options, name)
            if value != getattr(PLAIN_CHAT, name):
                fields[name] = [*value] if name == "tools" else value
        contents = [
            content for each in messages if isinstance(content := each.get("content"), list)
        ]
        parts = [part for content in contents for part in content if isinstance(part, dict)]
        has_image = any("image_url" in (part.get("type"), *part) for part in parts)
        timeout_s = self._mm_timeout_s if has_image else self._timeout_s
        return self._render("/v1/chat/completions/render", fields, 1, timeout_s)[0]

    def _render(
        self, path: str, fields: Mapping[str, object], count: int, timeout_s: float | None = None
    ) -> list[list[int]]:
        answer = self._post(path, fields, timeout_s)
        answers = answer if isinstance(answer, list) else [answer]
        if len(answers) < count:
            raise self._unusable(path, f"{len(answers)} answers to {count} prompts")
        found = [
            item.get("token_ids") if isinstance(item, dict) else None for item in answers[:count]
        ]
        ids = [
            item
            for item in found
            if isinstance(item, list) and all(type(each) is int for each in item)
        ]
        if len(ids) < count:
            raise self._unusable(path, "no list of token_ids")
        return ids

    def _post(
        self, path: str, fields: Mapping[str, object], timeout_s: float | None = None
    ) -> object:
        try:
            body = msgspec.json.encode({"model": self._model, **fields})
        except UnicodeEncodeError as error:
            raise not_unicode() from error
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        try:
            # The library's time-outs limit neither name resolution nor the whole response.
            with gevent.Timeout(timeout_s, TimeoutError):
                status, data = wait_off_hub(self._request, path, body, timeout_s)
        except (urllib3.exceptions.HTTPError, TimeoutError) as error:
            cause = getattr(error, "reason", error)
            # A refused connection is a time-out in the library's class hierarchy.
            is_refused = isinstance(cause, urllib3.exceptions.NewConnectionError)
            is_late = (
                isinstance(cause, urllib3.exceptions.TimeoutError | TimeoutError) and not is_refused
            )
            trouble = "timed out" if is_late else f"is out of reach: {cause}"
            raise TokenizerServiceError(f"The tokenizer service {self.name} {trouble}.") from error
        if len(data) > MOST_BYTES:
            raise self._unusable(path, f"more than {MOST_BYTES >> 20} MiB")
        if status in (400, 422):
            raise TokenizerInputError(_reason(data))
        if not 200 <= status < 300:
            raise self._unusable(path, f"status {status}: {_reason(data)}")
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._unusable(path, "no JSON") from error

    def _request(self, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Returns status and body, cut soon after `MOST_BYTES`.

        Raises TimeoutError for a slow response.
        """
        url, data, until_s = self.name + path, bytearray(), time.monotonic() + timeout_s
        with self._pool.request(
            "POST", url, body=body, headers=JSON, timeout=timeout_s, preload_content=False
        ) as response:  # closed, unless it is whole, which keeps its connection
            while len(data) <= MOST_BYTES and (piece := response.read1(1 << 16)):
                data += piece
                if time.monotonic() > until_s:
                    raise TimeoutError
        return response.status, bytes(data)

    def _unusable(self, path: str, what: str) -> TokenizerServiceError:
        return TokenizerServiceError(
            f"The tokenizer service {self.name} answered {path} with {what}."
        )


def _reason(data: bytes) -> str:
    """Returns the message of an error body in vLLM's format, else the start of the body."""
    try:
        return str(msgspec.json.decode(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode("utf-8", "replace")
