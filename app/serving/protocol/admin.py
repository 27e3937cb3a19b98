"""Bodies of operators' routes: a trainer's weights, adapters (vllm-api.md section 10), the profiler."""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from app.serving.http.errors import ApiError, bad_request, malformed
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.decoding import RawRequest, Request


class InitTransferRequest(Request, kw_only=True):
    """The body of ``POST /init_weight_transfer_engine``."""

    init_info: JsonObject


class UpdateWeightsRequest(Request, kw_only=True):
    """The body of ``POST /update_weights``; a list has one object per device."""

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


class LoadAdapterRequest(Request, kw_only=True):
    """An adapter's name and path."""

    lora_name: str
    lora_path: str
    load_inplace: bool = False
    is_3d_lora_weight: bool = False
    base_model_name: str | None = None

    def check_values(self) -> None:
        """ApiError 400 for an empty name or path."""
        if not self.lora_name or not self.lora_path:
            raise ApiError(400, "InvalidUserInput", "lora_name and lora_path must not be empty.")


class RegisterAdapterRequest(Request, kw_only=True):
    """The body of SageMaker's ``POST /adapters``."""

    name: str
    src: str


class UnloadAdapterRequest(Request, kw_only=True):
    """The adapter to unload."""

    lora_name: str
    lora_int_id: int | None = None

    def check_values(self) -> None:
        """ApiError 400 for an empty name."""
        if not self.lora_name:
            raise ApiError(400, "InvalidUserInput", "lora_name must not be empty.")


PREFIX = re.compile(r"[a-zA-Z0-9][\w.-]{0,127}", re.ASCII)
KINDS = {"profile_prefix": str, "delay_iterations": int, "max_iterations": int}


class StartProfileRequest(Request, kw_only=True):
    """The body of ``POST /start_profile``; vLLM converts no other types to its fields."""

    profile_prefix: str | None = None
    delay_iterations: int | None = None
    max_iterations: int | None = None

    def check_rules(self: StartProfileRequest | RawRequest) -> None:
        for name, kind in KINDS.items():
            value = getattr(self, name)
            if value is not None and type(value) is not kind:
                raise malformed(f"body.{name}: expected {kind.__name__}", f"body.{name}")
        if self.profile_prefix is not None and not PREFIX.fullmatch(self.profile_prefix):
            raise bad_request("profile_prefix must be up to 128 letters, digits and ._-, the first no sign")
        for name in ("delay_iterations", "max_iterations"):
            if (getattr(self, name) or 0) < 0:
                raise bad_request(f"{name} must be 0 or more")
