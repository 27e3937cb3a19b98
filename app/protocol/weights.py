"""The bodies of a trainer's routes, whose fields vLLM takes one by one."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from app.protocol.coercion import JsonObject
from app.protocol.decoding import Request


class InitTransferRequest(Request, kw_only=True):
    """The body of ``POST /init_weight_transfer_engine``."""

    init_info: JsonObject


class UpdateWeightsRequest(Request, kw_only=True):
    """The body of ``POST /update_weights``; a list has an object for each device."""

    update_info: JsonObject | list[JsonObject]


class FinishUpdateRequest(Request, kw_only=True):
    """The body of ``POST /finish_weight_update``."""

    weight_version: str | None = None


class WeightVersionRequest(Request, kw_only=True):
    """The body of ``POST /update_weight_version``."""

    new_version: str


class WeightCheckRequest(Request, kw_only=True):
    """The body of ``POST /weight_checker``."""

    action: Literal["checksum", "reset", "compare"]
    baseline: dict[str, str] | None = None


class WorldSizeQuery(Struct):
    """The query of ``GET /get_world_size``."""

    include_dp: bool = True
