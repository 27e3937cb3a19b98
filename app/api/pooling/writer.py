"""Answers of many items: made in turns with other requests, and sent while they are made when large."""

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
from app.pooling.numbers import BYTES, packing
from app.protocol.common import Usage, encode
from app.protocol.pooling import BytesMetadata, EncodedNumbers, EncodedRequest, ItemList, PromptUsage

OCTETS = "application/octet-stream"
MOST_NUMBERS = 2**24
"""Numbers in one answer."""
WHOLE = 2**19
"""Numbers up to which an answer is kept together, and tells its length."""

Shape = tuple[int, ...]
Rows = Iterable["array[float]"]


class ItemForm(NamedTuple):
    """How an item of a list calls itself, and its numbers."""

    kind: str
    field: str


class Pooled(NamedTuple):
    """Rows of numbers for each input, computed as they are read; shapes and tokens are known before."""

    inputs: Iterable[Rows]
    shapes: Sequence[Shape]
    tokens: int

    def check_size(self) -> int:
        """Returns how many numbers there are. ApiError 400 for more than one answer holds."""
        numbers = sum(map(math.prod, self.shapes))
        if numbers > MOST_NUMBERS:
            raise bad_request(f"the answer would have {numbers} numbers, more than {MOST_NUMBERS}")
        return numbers


def list_reply(
    meta: ResponseMeta, items: Iterable[object], tokens: int, headers: Mapping[str, str]
) -> Response:
    """The list of `items`, for prompts of `tokens` tokens."""
    pieces = (b"," * bool(index) + encode(item) for index, item in enumerate(items))
    return Response(b"".join(_list(meta, pieces, tokens)), 200, headers, content_type=JSON)


def vector_reply(
    request: EncodedRequest,
    meta: ResponseMeta,
    form: ItemForm,
    pooled: Pooled,
    headers: Mapping[str, str],
    pace: Callable[[], None],
) -> Response:
    """The numbers in the encoding that the request names. ApiError 400 for more than one answer holds."""
    numbers = pooled.check_size()
    pack, content_type = packing(request.embed_dtype, request.endianness, pace), OCTETS
    if request.encoding_format == "float":
        pieces, content_type = _list(meta, _items(form, pooled, _floats), pooled.tokens), JSON
    elif request.encoding_format == "base64":

        def base64(rows: Rows, shape: Shape) -> Iterator[bytes]:
            yield b'"%b"' % b64encode(b"".join(map(pack, rows)))

        pieces, content_type = _list(meta, _items(form, pooled, base64), pooled.tokens), JSON
    else:
        pieces = (pack(row) for rows in pooled.inputs for row in rows)
    if request.encoding_format == "bytes":
        headers = {**headers, "metadata": _metadata(request, meta, pooled)}
    body = b"".join(pieces) if numbers <= WHOLE else blocks(pieces)
    return Response(body, 200, headers, content_type=content_type)


def _list(meta: ResponseMeta, items: Iterable[bytes], tokens: int) -> Iterator[bytes]:
    usage = Usage(tokens, tokens, 0, None, None)
    begin, end = template(
        ItemList(id=meta.id, created=meta.created, model=meta.model, data=HOLE, usage=usage)
    )
    yield begin + b"["
    yield from items
    yield b"]" + end


def _items(
    form: ItemForm, pooled: Pooled, write: Callable[[Rows, Shape], Iterator[bytes]]
) -> Iterator[bytes]:
    """The JSON of each input, in one piece or several, with the commas between them."""
    kind, field = (name.encode() for name in form)
    for index, (rows, shape) in enumerate(zip(pooled.inputs, pooled.shapes, strict=True)):
        yield b'%b{"index":%d,"object":"%b","%b":' % (b"," if index else b"", index, kind, field)
        yield from write(rows, shape)
        yield b"}"


def _floats(rows: Rows, shape: Shape) -> Iterator[bytes]:
    nested = len(shape) > 1
    for number, row in enumerate(rows):
        yield (b"," if number else b"[" * nested) + encode(row.tolist())
    yield b"]" * nested


def _metadata(request: EncodedRequest, meta: ResponseMeta, pooled: Pooled) -> str:
    """What a body of bytes consists of, for a header: JSON without any character beyond ASCII."""
    size = BYTES[request.embed_dtype]
    places = pairwise(accumulate((size * math.prod(shape) for shape in pooled.shapes), initial=0))
    items = [
        EncodedNumbers(index, request.embed_dtype, request.endianness, start, end, shape)
        for index, ((start, end), shape) in enumerate(zip(places, pooled.shapes, strict=True))
    ]
    usage = PromptUsage(pooled.tokens, pooled.tokens)
    return json.dumps(to_builtins(BytesMetadata(meta.id, meta.created, meta.model, items, usage)))
