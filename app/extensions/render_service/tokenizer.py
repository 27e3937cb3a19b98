"""A tokenizer behind HTTP: a vLLM server or its render service."""

import re
from collections.abc import Mapping, Sequence

import gevent
import msgspec
from urllib3 import Retry
from urllib3.exceptions import HTTPError, NewConnectionError
from urllib3.exceptions import TimeoutError as ConnectionTimeoutError

from app.core.base.clock.pause import wait_off_hub
from app.core.base.error_body import error_message
from app.core.base.http_pool import HttpPool, ResponseSizeError
from app.core.text.base import (
    PLAIN_CHAT,
    ChatOptions,
    KeptTokens,
    Message,
    SurrogateError,
    TextCheck,
    TokenIdError,
    Tokenizer,
    TokenizerInputError,
    TokenizerServiceError,
)
from config.untrusted import UntrustedDataError, decode_untrusted

CONNECTIONS = 32
"""Connections kept open between calls; further ones are closed after their call."""
MAX_PROMPTS_PER_CALL = 256
"""Maximum number of prompts per call; vLLM rejects more than 1024."""
MAX_RESPONSE_BYTES = 64 << 20
"""Maximum size of a response: 8 million token ids."""
RETRY = Retry(connect=0, read=1, redirect=False, status=0, other=0, allowed_methods=None)
"""Repeats a call when the service has just closed an idle connection: the call changes nothing."""
JSON = {"Content-Type": "application/json"}
WORD = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")


class RenderTokenizer(Tokenizer):
    """The `Tokenizer` of the service at the base address `url`, which knows the model as `model`.

    The service returns ids without the text of each, so `pieces` are words instead. A call may take
    `timeout_s` seconds to the last byte of its response; one with images `mm_timeout_s`, by default
    the same.
    """

    def __init__(
        self, url: str, *, model: str, timeout_s: float = 5.0, mm_timeout_s: float | None = None
    ) -> None:
        self.name = url.rstrip("/")
        self._model = model
        self._pool = HttpPool(connections=CONNECTIONS, retries=RETRY)
        self._timeout_s = timeout_s
        self._mm_timeout_s = timeout_s if mm_timeout_s is None else mm_timeout_s

    def close(self) -> None:
        """Closes the idle connections."""
        self._pool.close()

    def check_ids(self, ids: Sequence[int]) -> None:
        """Rejects negative ids only, as the vocabulary is unknown."""
        if ids and min(ids) < 0:
            raise TokenIdError(min(ids))

    def encode_many(
        self, texts: Sequence[str], add_special_tokens: bool = False
    ) -> list[list[int]]:
        """Sends no empty texts, which the service rejects."""
        prompts = [text for text in texts if text]
        rendered: list[list[int]] = []
        for start in range(0, len(prompts), MAX_PROMPTS_PER_CALL):
            batch = prompts[start : start + MAX_PROMPTS_PER_CALL]
            prompt = batch[0] if len(batch) == 1 else batch
            fields = {"prompt": prompt, "add_special_tokens": add_special_tokens}
            rendered += self._render("/v1/completions/render", fields, count=len(batch))
        ids = iter(rendered)
        return [next(ids) if text else [] for text in texts]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Never skips special tokens, as the service shows them."""
        if not ids:
            return ""
        answer = self._post("/detokenize", {"tokens": list(ids)})
        if not isinstance(answer, dict) or not isinstance(answer.get("prompt"), str):
            raise self._unusable("/detokenize", "the response contains no prompt")
        return str(answer["prompt"])

    def pieces(self, ids: Sequence[int], skip_special_tokens: bool = True) -> list[str]:
        """Splits the text at words and signs, in as many pieces as there are ids."""
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
        kept: KeptTokens | None = None,
    ) -> list[int]:
        """Sends only the options that differ from the defaults."""
        fields: dict[str, object] = {"messages": list(messages)}
        for name in ChatOptions.__struct_fields__:
            value = getattr(options, name)
            if value != getattr(PLAIN_CHAT, name):
                fields[name] = value
        if options.tools is not None:
            fields["tools"] = [*options.tools]
        timeout_s = self._timeout_s
        if any(map(_has_image, messages)):
            timeout_s = self._mm_timeout_s
        [ids] = self._render("/v1/chat/completions/render", fields, count=1, timeout_s=timeout_s)
        return ids

    def _render(
        self,
        path: str,
        fields: Mapping[str, object],
        *,
        count: int,
        timeout_s: float | None = None,
    ) -> list[list[int]]:
        """Returns the token ids of `count` prompts."""
        answer = self._post(path, fields, timeout_s)
        answers = answer if isinstance(answer, list) else [answer]
        if len(answers) < count:
            raise self._unusable(path, f"got {len(answers)} responses for {count} prompts")
        prompts: list[list[int]] = []
        for item in answers[:count]:
            ids = item.get("token_ids") if isinstance(item, dict) else None
            if not isinstance(ids, list) or any(type(token_id) is not int for token_id in ids):
                raise self._unusable(path, "the response contains no list of token_ids")
            prompts.append(ids)
        return prompts

    def _post(
        self, path: str, fields: Mapping[str, object], timeout_s: float | None = None
    ) -> object:
        try:
            body = msgspec.json.encode({"model": self._model, **fields})
        except UnicodeEncodeError as error:
            raise SurrogateError from error
        if timeout_s is None:
            timeout_s = self._timeout_s
        try:
            # The library's timeouts limit neither name resolution nor the whole response.
            with gevent.Timeout(timeout_s, TimeoutError):
                status, data = wait_off_hub(
                    self._pool.request,
                    "POST",
                    self.name + path,
                    timeout_s=timeout_s,
                    max_bytes=MAX_RESPONSE_BYTES,
                    headers=JSON,
                    body=body,
                )
        except ResponseSizeError as error:
            raise self._unusable(path, str(error)) from error
        except (HTTPError, TimeoutError) as error:
            raise TokenizerServiceError(
                f"The tokenizer service {self.name} {_describe_failure(error)}."
            ) from error
        if status in (400, 422):
            raise TokenizerInputError(_reason(data))
        if not 200 <= status < 300:
            raise self._unusable(path, f"status {status}: {_reason(data)}")
        try:
            return decode_untrusted(data)
        except UntrustedDataError as error:
            raise self._unusable(path, "the response is not valid JSON") from error

    def _unusable(self, path: str, problem: str) -> TokenizerServiceError:
        return TokenizerServiceError(
            f"The tokenizer service {self.name} returned an unusable response for {path}: "
            f"{problem}."
        )


def _has_image(message: Message) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return False
    parts = [part for part in content if isinstance(part, dict)]
    return any("image_url" in (part.get("type"), *part) for part in parts)


def _describe_failure(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    # A refused connection is a timeout in the library's class hierarchy.
    is_refused = isinstance(cause, NewConnectionError)
    if isinstance(cause, ConnectionTimeoutError | TimeoutError) and not is_refused:
        return "timed out"
    return f"is out of reach: {cause}"


def _reason(data: bytes) -> str:
    """Returns the message of an error body in vLLM's format, else the start of the body."""
    return error_message(data) or data[:200].decode("utf-8", "replace")
