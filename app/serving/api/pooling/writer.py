"""Answers of many items: made in turns with other requests; large answers are sent while they are made."""

from __future__ import annotations

import json
import math
import struct
import sys
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from app.serving.api.identity import ResponseMeta
from app.serving.http.errors import bad_request
from app.serving.http.response import JSON, Response
from app.serving.protocol.common import HOLE, Usage, encode, template
from app.serving.protocol.pooling import EncodedRequest, ItemList

OCTETS = "application/octet-stream"
MOST_NUMBERS = 2**24
"""Most numbers in one answer."""
WHOLE = 2**19
"""Most numbers of an answer that is sent whole, with its length."""
BLOCK_BYTES = 1 << 15
"""Bytes of a block of a larger answer; smaller pieces are joined."""


class Pooled(NamedTuple):
    """Rows of numbers for each input, computed on reading; shapes and tokens are known before."""

    inputs: Iterable[Iterable[array[float]]]
    shapes: Sequence[tuple[int, ...]]
    tokens: int

    def check_size(self) -> int:
        """Returns the count of all numbers. ApiError 400 for more than one answer holds."""
        numbers = sum(map(math.prod, self.shapes))
        if numbers > MOST_NUMBERS:
            raise bad_request(f"the answer would have {numbers} numbers, more than {MOST_NUMBERS}")
        return numbers


def list_reply(
    meta: ResponseMeta, items: Iterable[object], tokens: int, headers: Mapping[str, str]
) -> Response:
    pieces = (b"," * bool(index) + encode(item) for index, item in enumerate(items))
    return Response(b"".join(_list(meta, pieces, tokens)), 200, headers, content_type=JSON)


def vector_reply(
    request: EncodedRequest,
    meta: ResponseMeta,
    field: str,
    pooled: Pooled,
    headers: Mapping[str, str],
    pace: Callable[[], None],
) -> Response:
    """Returns the numbers in the request's encoding; an item of a list has them under `field`.

    ApiError 400 for more numbers than one answer holds.
    """
    numbers, form = pooled.check_size(), request.encoding_format
    pack = packing(request.embed_dtype, request.endianness, pace)
    if form in ("float", "base64"):
        items = _items(field, pooled, pack if form == "base64" else None)
        pieces, content_type = _list(meta, items, pooled.tokens), JSON
    else:
        pieces, content_type = (pack(row) for rows in pooled.inputs for row in rows), OCTETS
    if form == "bytes":
        headers = {**headers, "metadata": _metadata(request, meta, pooled)}
    body = b"".join(pieces) if numbers <= WHOLE else blocks(pieces)
    return Response(body, 200, headers, content_type=content_type)


def blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the same bytes in blocks that are large enough to send."""
    block = bytearray()
    for piece in pieces:
        block += piece
        if len(block) >= BLOCK_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


def _list(meta: ResponseMeta, items: Iterable[bytes], tokens: int) -> Iterator[bytes]:
    usage = Usage(tokens, tokens, 0, None, None)
    begin, end = template(
        ItemList(id=meta.id, created=meta.created, model=meta.model, data=HOLE, usage=usage)
    )
    yield begin + b"["
    yield from items
    yield b"]" + end


def _items(field: str, pooled: Pooled, pack: Pack | None) -> Iterator[bytes]:
    """Yields the JSON of each input in pieces, with commas in between: base64 of `pack`, else numbers."""
    kind, name = b"pooling" if field == "data" else field.encode(), field.encode()
    for index, (rows, shape) in enumerate(zip(pooled.inputs, pooled.shapes, strict=True)):
        yield b'%b{"index":%d,"object":"%b","%b":' % (b"," if index else b"", index, kind, name)
        if pack is None:
            nested = len(shape) > 1
            for number, row in enumerate(rows):
                yield (b"," if number else b"[" * nested) + encode(row.tolist())
            yield b"]" * nested + b"}"
        else:
            yield b'"%b"}' % b64encode(b"".join(map(pack, rows)))


def _metadata(request: EncodedRequest, meta: ResponseMeta, pooled: Pooled) -> str:
    """Returns the header that describes a body of bytes: JSON in ASCII.

    The numbers of an input are from byte `start` up to `end`.
    """
    dtype = request.embed_dtype
    starts = accumulate((BYTES[dtype] * math.prod(shape) for shape in pooled.shapes), initial=0)
    items = [
        {
            "index": index,
            "embed_dtype": dtype,
            "endianness": request.endianness,
            "start": start,
            "end": end,
            "shape": shape,
        }
        for index, ((start, end), shape) in enumerate(zip(pairwise(starts), pooled.shapes, strict=True))
    ]
    usage = {"prompt_tokens": pooled.tokens, "total_tokens": pooled.tokens}
    told = {"id": meta.id, "created": meta.created, "model": meta.model, "data": items, "usage": usage}
    return json.dumps(told)


Pack = Callable[["array[float]"], bytes]

BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of one number."""
SLICE = 4096
"""Numbers rounded at a time: about a millisecond of work."""

_SMALL: Mapping[str, tuple[int, int]] = {"bfloat16": (8, 7), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}
"""Bits of exponent and of mantissa of formats that Python does not know."""


def packing(dtype: str, endianness: str, pace: Callable[[], None]) -> Pack:
    """Returns a function that packs numbers as `dtype` (see `BYTES`), byte order native, big or little.

    Calls `pace` while it packs a long vector.
    """
    little = (sys.byteorder if endianness == "native" else endianness) == "little"
    letter = {"float32": "f", "float16": "e", "bfloat16": "H"}.get(dtype, "B")

    def pack(numbers: array[float]) -> bytes:
        packed = []
        for start in range(0, len(numbers), SLICE):
            part = numbers[start : start + SLICE]
            values = small_floats(part, *_SMALL[dtype]) if dtype in _SMALL else part
            packed.append(struct.pack(f"{'<' if little else '>'}{len(part)}{letter}", *values))
            pace()
        return b"".join(packed)

    return pack


def small_floats(numbers: array[float], exponent_bits: int, mantissa_bits: int) -> list[int]:
    """Codes of the nearest floating point numbers of these bits and a sign; ties go to the even one.

    For finite 32-bit numbers within the range of the format, which has fewer bits of mantissa.
    """
    bias = (1 << exponent_bits - 1) - 1
    smallest_normal, steps_of_one = 2.0 ** (1 - bias), 2.0 ** (bias - 1 + mantissa_bits)
    dropped = 23 - mantissa_bits
    below_half = (1 << dropped - 1) - 1
    rebias = (127 - bias) << mantissa_bits
    sign_to = exponent_bits + mantissa_bits
    codes = []
    for number, bits in zip(numbers, array("I", numbers.tobytes()), strict=True):
        sign, bits = bits >> 31 << sign_to, bits & 0x7FFF_FFFF
        if -smallest_normal < number < smallest_normal:
            codes.append(sign | round(abs(number) * steps_of_one))
        else:  # a carry out of the mantissa is a step of the exponent, as it should be
            codes.append(sign | (bits + below_half + (bits >> dropped & 1) >> dropped) - rebias)
    return codes
