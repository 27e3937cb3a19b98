"""The bodies of the routes that load and unload adapters (vllm-api.md section 10)."""

from __future__ import annotations

from app.http.errors import ApiError
from app.protocol.decoding import Request


class LoadAdapterRequest(Request, kw_only=True):
    """An adapter, and where it lies."""

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
    """The adapter that is to go."""

    lora_name: str
    lora_int_id: int | None = None

    def check_values(self) -> None:
        """ApiError 400 for an empty name."""
        if not self.lora_name:
            raise ApiError(400, "InvalidUserInput", "lora_name must not be empty.")
