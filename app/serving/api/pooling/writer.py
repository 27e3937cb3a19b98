"""Answers of many items: lists of JSON, and numbers as bytes in every format."""

from __future__ import annotations

import json
import math
import struct
import sys
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from msgspec import Raw

from app.serving.api.identity import ResponseMeta
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.protocol.common import Usage, encode
from app.serving.protocol.pooling import EncodedRequest, ItemList

OCTETS = "application/octet-stream"
MOST_NUMBERS = 2**22
"""Most numbers in one answer: about 80 MB of JSON."""
Pack = Callable[["array[float]"], bytes]
BYTES: Mapping[str, int] = {"float32": 4, "float16": 2, "bfloat16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1}
"""Bytes of one number."""
LETTERS: Mapping[str, str] = {"float32": "f", "float16": "e", "bfloat16": "H"}
"""Codes of `struct`; B for others."""
SMALL: Mapping[str, tuple[int, int]] = {"bfloat16": (8, 7), "fp8_e4m3": (4, 3), "fp8_e5m2": (5, 2)}
"""Bits of exponent and of mantissa of formats that Python does not know."""


class Pooled(NamedTuple):
    """Rows of numbers for each input, computed on reading; shapes and tokens are known before."""

    inputs: Iterable[Iterable[array[float]]]
    shapes: Sequence[tuple[int, ...]]
    tokens: int

    def check_size(self) -> None:
        """Raises ApiError 400 for more numbers than one answer holds."""
        if (numbers := sum(map(math.prod, self.shapes))) > MOST_NUMBERS:
            raise bad_request(f"the answer would have {numbers} numbers, more than {MOST_NUMBERS}")


def list_reply(
    meta: ResponseMeta, items: Iterable[object], tokens: int, headers: Mapping[str, str]
) -> Response:
    data, usage = [Raw(encode(item)) for item in items], Usage(tokens, tokens, 0, None, None)
    told = ItemList(id=meta.id, created=meta.created, model=meta.model, data=data, usage=usage)
    return json_response(told, 200, headers)


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
    pooled.check_size()
    form, kind = request.encoding_format, "pooling" if field == "data" else field
    pack = packing(request.embed_dtype, request.endianness, pace)
    if form in ("float", "base64"):
        values = (
            _value(rows, len(shape) > 1, pack if form == "base64" else None)
            for rows, shape in zip(pooled.inputs, pooled.shapes, strict=True)
        )
        items = ({"index": index, "object": kind, field: value} for index, value in enumerate(values))
        return list_reply(meta, items, pooled.tokens, headers)
    if form == "bytes":
        headers = {**headers, "metadata": _metadata(request, meta, pooled)}
    body = b"".join(pack(row) for rows in pooled.inputs for row in rows)
    return Response(body, 200, headers, content_type=OCTETS)


def _value(rows: Iterable[array[float]], nested: bool, pack: Pack | None) -> object:
    if pack is not None:
        return b64encode(b"".join(map(pack, rows))).decode()
    lists = [row.tolist() for row in rows]
    return lists if nested else lists[0]


def _metadata(request: EncodedRequest, meta: ResponseMeta, pooled: Pooled) -> str:
    """Returns the header that describes a body of bytes: JSON in ASCII.

    The numbers of an input are from byte `start` up to `end`.
    """
    same = {"embed_dtype": request.embed_dtype, "endianness": request.endianness}
    sizes = (BYTES[request.embed_dtype] * math.prod(shape) for shape in pooled.shapes)
    places = pairwise(accumulate(sizes, initial=0))
    items = [
        {"index": index, **same, "start": start, "end": end, "shape": shape}
        for index, ((start, end), shape) in enumerate(zip(places, pooled.shapes, strict=True))
    ]
    usage = {"prompt_tokens": pooled.tokens, "total_tokens": pooled.tokens}
    told = {"id": meta.id, "created": meta.created, "model": meta.model, "data": items, "usage": usage}
    return json.dumps(told)


def packing(dtype: str, endianness: str, pace: Callable[[], None]) -> Pack:
    """Returns a function that packs numbers as `dtype` (see `BYTES`), byte order native, big or little."""
    little = (sys.byteorder if endianness == "native" else endianness) == "little"
    letter = LETTERS.get(dtype, "B")

    def pack(numbers: array[float]) -> bytes:
        pace()
        values = small_floats(numbers, *SMALL[dtype]) if dtype in SMALL else numbers
        return struct.pack(f"{'<' if little else '>'}{len(values)}{letter}", *values)

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
