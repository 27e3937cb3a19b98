"""The body of SGLang's `/generate`."""

import msgspec
from msgspec import Struct

from app.core.base.clock.pause import pause_if_possible
from app.core.protocol.coercion import JsonObject
from app.core.protocol.decoding import LARGE_BODY_BYTES, check_content_type
from app.core.protocol.options import Int64
from app.core.server.http.errors import malformed
from app.extensions.sglang.errors import ContractError
from app.extensions.sglang.sampling_params import SamplingParams
from config.untrusted import UntrustedDataError, decode_untrusted


class GenerateRequest(Struct, kw_only=True):
    """The body; unknown fields are ignored."""

    rid: str | list[str] | None = None
    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    input_embeds: object = None
    image_data: object = None
    video_data: object = None
    audio_data: object = None
    sampling_params: JsonObject | list[JsonObject] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[int | list[int] | None] | None = None
    return_text_in_logprobs: bool = False
    stream: bool = False
    lora_path: str | list[str | None] | None = None
    return_prompt_token_ids: bool = False
    priority: Int64 | None = None
    cache_salt: str | list[str | None] | None = None
    routed_dp_rank: int | None = None
    data_parallel_rank: int | None = None
    bootstrap_host: str | list[str | None] | None = None
    bootstrap_port: int | list[int | None] | None = None
    bootstrap_room: int | list[int | None] | None = None

    @property
    def rank(self) -> int | None:
        """Rank that the request names."""
        if self.routed_dp_rank is not None:
            return self.routed_dp_rank
        return self.data_parallel_rank

    def sampling(self) -> list[SamplingParams]:
        """Returns the sampling parameters of each prompt, or one for all prompts.

        Raises:
            ContractError: a parameter is unknown or has a wrong type.
        """
        values = self.sampling_params
        if not isinstance(values, list):
            values = [values or {}]
        try:
            return msgspec.convert(values, list[SamplingParams])
        except msgspec.ValidationError as error:
            raise ContractError(f"sampling_params: {error}") from None


def decode_generate(body: bytes, content_type: str | None) -> GenerateRequest:
    """Returns the request in a body.

    Raises:
        ApiError: 400 for an invalid body.
    """
    if content_type is not None:
        check_content_type(content_type)
    try:
        request = decode_untrusted(body, decoder=_decoder)
    except UntrustedDataError as error:
        raise malformed(f"The body is invalid: {error}") from None
    if len(body) > LARGE_BODY_BYTES:
        pause_if_possible()  # before the conversion of the parameters, which takes as long
    return request


_decoder = msgspec.json.Decoder(GenerateRequest)
