"""The result of a translation, and functions that all translators use."""

import re
from collections.abc import Iterable

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.extensions.recording.conversation import Json
from app.extensions.recording.exchange import Exchange, RecordedChunk, RecordedRequest, data_of
from app.extensions.recording.reply_fields import add_loss

CHAT = "/v1/chat/completions"


class TranslatedExchange(Struct):
    """An exchange in the form of an API that vLLM serves.

    Attributes:
        exchange: The exchange.
        losses: Parts that the other API does not have.
        is_any_api: The server answers the provider's API, too, so the rule applies to all APIs.
    """

    exchange: Exchange
    losses: list[str] = []
    is_any_api: bool = False

    def lose(self, loss: str) -> None:
        """Adds a part of the exchange that the other API does not have."""
        add_loss(self.losses, loss)

    def lose_others(self, fields: Json, kept: Iterable[str], place: str = "") -> None:
        """Adds the fields of an object that have a value and are not in `kept`."""
        for name, value in fields.items():
            if name not in kept and value not in (None, "", [], {}):
                self.lose(f"{place}{name}")

    def set_request(self, path: str, body: Json) -> None:
        """Replaces the request."""
        text = msgspec.json.encode(body).decode()
        self.exchange = replace(self.exchange, request=RecordedRequest("POST", path, (), text))

    def set_answer(self, body: bytes) -> None:
        """Replaces the body of the answer."""
        answer = self.exchange.answer
        chunks = [RecordedChunk(answer.end_s, data_of(body))]
        self.exchange = replace(self.exchange, answer=replace(answer, chunks=chunks))

    def set_stream(self, events: Iterable[tuple[float, Json]]) -> None:
        """Replaces the answer by a stream of events, which have the seconds after the request."""
        chunks: list[RecordedChunk] = []
        for at_s, event in events:
            chunks.append(RecordedChunk(at_s, f"data: {msgspec.json.encode(event).decode()}\n\n"))
        answer = replace(
            self.exchange.answer, headers=[("content-type", "text/event-stream")], chunks=chunks
        )
        self.exchange = replace(self.exchange, answer=answer)


def path_of(exchange: Exchange) -> str:
    """Returns the path of an exchange, without its query."""
    return exchange.request.target.partition("?")[0]


def matched(pattern: re.Pattern[str], exchange: Exchange) -> re.Match[str]:
    """Returns the parts of the path of an exchange.

    Raises:
        ValueError: the path is of another API.
    """
    match = pattern.fullmatch(path_of(exchange))
    if match is None:
        raise ValueError("the path is of another API")
    return match


def function_tool(name: str, parameters: object) -> Json:
    """Returns a tool of a chat."""
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def call_piece(index: int, call_id: object, name: str, arguments: str) -> Json:
    """Returns a tool call, or a piece of one, of a chat's stream."""
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": call_id, "function": function}


def chat_chunk(delta: Json, finish: str = "", usage: Json | None = None) -> Json:
    """Returns an event of a chat's stream."""
    choice: Json = {"index": 0, "delta": delta}
    if finish:
        choice["finish_reason"] = finish
    chunk: Json = {"choices": [choice]}
    if usage:
        chunk["usage"] = usage
    return chunk
