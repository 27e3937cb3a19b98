"""Answers of many items: made in turns, and sent on while they are made when they are large."""

from __future__ import annotations

import json
import math
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from msgspec import to_builtins

from app.api.identity import ResponseMeta
from app.api.pieces import HOLE, blocks, template
from app.http.errors import bad_request
from app.http.response import JSON, Response
from app.pooling.numbers import BYTES, Turns, packing
from app.protocol.common import Usage, encode
from app.protocol.pooling import BytesMetadata, EncodedNumbers, EncodedRequest, ItemList, PromptUsage

OCTETS = "application/octet-stream"
MOST_NUMBERS = 2**24
"""Numbers in one answer."""
WHOLE = 2**19
"""Numbers up to which an answer is kept together, and tells its length."""

Shape = tuple[int, ...]
Rows = Iterable["array[float]"]
Write = Callable[[Rows, Shape], Iterator[bytes]]


class ItemForm(NamedTuple):
    """How an item of a list calls itself, and its numbers."""

    kind: str
    field: str


class Pooled(NamedTuple):
    """Rows of numbers for each input, made as they are asked for; the rest is known before."""

    inputs: Iterable[Rows]
    shapes: Sequence[Shape]
    tokens: int


def list_reply(
    head: ResponseMeta, items: Iterable[bytes], tokens: int, headers: Mapping[str, str]
) -> Response:
    """The list of `items`, each JSON already, for prompts of `tokens` tokens."""
    return Response(b"".join(_list(head, items, tokens)), 200, headers, content_type=JSON)


def vector_reply(
    asked: EncodedRequest, head: ResponseMeta, form: ItemForm, pooled: Pooled, headers: Mapping[str, str]
) -> Response:
    """The numbers in the encoding that the request names. ApiError 400 for more than one answer holds."""
    numbers = check_size(pooled)
    turns = Turns()
    inputs = (turns.each(rows, len) for rows in pooled.inputs)
    if asked.encoding_format in ("float", "base64"):
        pieces, content_type = _list(head, _items(asked, form, inputs, pooled.shapes), pooled.tokens), JSON
    else:
        pack = packing(asked.embed_dtype, asked.endianness)
        pieces, content_type = (pack(row) for rows in inputs for row in rows), OCTETS
    if asked.encoding_format == "bytes":
        headers = {**headers, "metadata": _metadata(asked, head, pooled)}
    body = b"".join(pieces) if numbers <= WHOLE else blocks(pieces)
    return Response(body, 200, headers, content_type=content_type)


def check_size(pooled: Pooled) -> int:
    """How many numbers there are. ApiError 400 for more than one answer holds."""
    numbers = sum(map(math.prod, pooled.shapes))
    if numbers > MOST_NUMBERS:
        raise bad_request(f"the answer would have {numbers} numbers, more than {MOST_NUMBERS}")
    return numbers


def _list(head: ResponseMeta, items: Iterable[bytes], tokens: int) -> Iterator[bytes]:
    usage = Usage(tokens, tokens, 0, None, None)
    begin, end = template(
        ItemList(id=head.id, created=head.created, model=head.model, data=HOLE, usage=usage)
    )
    yield begin + b"["
    yield from items
    yield b"]" + end


def _items(
    asked: EncodedRequest, form: ItemForm, inputs: Iterable[Rows], shapes: Sequence[Shape]
) -> Iterator[bytes]:
    """The JSON of each input, in one piece or several, with the commas between them."""
    write = _writing(asked)
    kind, field = (name.encode() for name in form)
    for index, (rows, shape) in enumerate(zip(inputs, shapes, strict=True)):
        yield b'%b{"index":%d,"object":"%b","%b":' % (b"," if index else b"", index, kind, field)
        yield from write(rows, shape)
        yield b"}"


def _writing(asked: EncodedRequest) -> Write:
    if asked.encoding_format == "float":
        return _floats
    pack = packing(asked.embed_dtype, asked.endianness)

    def base64(rows: Rows, shape: Shape) -> Iterator[bytes]:
        yield b'"%b"' % b64encode(b"".join(map(pack, rows)))

    return base64


def _floats(rows: Rows, shape: Shape) -> Iterator[bytes]:
    nested = len(shape) > 1
    for number, row in enumerate(rows):
        yield (b"," if number else b"[" * nested) + encode(row.tolist())
    yield b"]" * nested


def _metadata(asked: EncodedRequest, head: ResponseMeta, pooled: Pooled) -> str:
    """What a body of bytes consists of, for a header: JSON without any character beyond ASCII."""
    size = BYTES[asked.embed_dtype]
    places = pairwise(accumulate((size * math.prod(shape) for shape in pooled.shapes), initial=0))
    items = [
        EncodedNumbers(index, asked.embed_dtype, asked.endianness, start, end, shape)
        for index, ((start, end), shape) in enumerate(zip(places, pooled.shapes, strict=True))
    ]
    usage = PromptUsage(pooled.tokens, pooled.tokens)
    metadata = BytesMetadata(head.id, head.created, head.model, items, usage)
    return json.dumps(to_builtins(metadata))
