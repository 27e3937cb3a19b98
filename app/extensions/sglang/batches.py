"""Splits a request of `/generate` into its prompts, each with its own parameters.

Start with `batch_of`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from app.core.api.engine_requests import claim_choices
from app.core.base.clock.pause import paced
from app.core.protocol.completions import CompletionRequest
from app.core.server.http.errors import bad_request
from app.extensions.sglang.generate_protocol import GenerateRequest
from app.extensions.sglang.sampling_params import MAX_PROMPTS, SamplingParams

MAX_TEMPERATURE = 2.0
"""Highest temperature of the engine; higher ones, which SGLang allows, count as this one."""
TOP_K_ALL = 1 << 30
"""SGLang's value of top_k for the whole vocabulary."""
UNSUPPORTED = ("input_embeds", "image_data", "video_data", "audio_data")

T = TypeVar("T")
Prompts = Sequence[str | list[int]]


class PromptItem(Struct, kw_only=True):
    """One prompt of a request."""

    prompt: str | list[int]
    rid: str | None
    """Id of the request; None to draw one."""
    params: SamplingParams
    logprobs: bool
    logprob_start: int
    """First token of the prompt with a log probability; -1 for none."""
    top_logprobs: int
    logprob_ids: list[int]
    """Token ids with log probabilities at each position."""
    adapter: str | None
    cache_salt: str | None

    def check(self) -> None:
        """Raises ApiError 400 for wrong numbers of log probabilities."""
        if self.top_logprobs < 0 or self.logprob_start < -1:
            raise bad_request(
                "top_logprobs_num must be at least 0, and logprob_start_len must be at least -1."
            )
        if self.top_logprobs and self.logprob_ids:
            raise bad_request("top_logprobs_num cannot be combined with token_ids_logprob.")

    def as_completion(self) -> CompletionRequest:
        """Returns the completion that generates the same tokens."""
        params = self.params
        temperature = params.temperature
        if temperature is not None:
            temperature = min(temperature, MAX_TEMPERATURE)
        top_k = params.top_k
        if top_k is not None and not 0 < top_k < TOP_K_ALL:
            top_k = None
        has_prompt_logprobs = self.logprobs and self.logprob_start >= 0
        request = CompletionRequest(
            model=self.adapter,
            cache_salt=self.cache_salt,
            temperature=temperature,
            top_p=params.top_p,
            top_k=top_k,
            min_p=params.min_p,
            frequency_penalty=params.frequency_penalty,
            presence_penalty=params.presence_penalty,
            repetition_penalty=params.repetition_penalty,
            min_tokens=params.min_new_tokens or 0,
            stop=params.stop,
            stop_token_ids=params.stop_token_ids,
            ignore_eos=bool(params.ignore_eos),
            include_stop_str_in_output=bool(params.no_stop_trim),
            skip_special_tokens=params.skip_special_tokens is not False,
            logit_bias=params.logit_bias,
            seed=params.sampling_seed,
            structured_outputs=params.form,
            logprobs=self.top_logprobs if self.logprobs else None,
            logprob_token_ids=self.logprob_ids or None,
            prompt_logprobs=self.top_logprobs if has_prompt_logprobs else None,
        )
        request.max_tokens = params.limit
        if params.limit == 0:
            # The engine computes at least one token, which the writer hides.
            request.max_tokens = 1
        return request


class Batch(Struct, frozen=True):
    """The prompts of a request; the answer is a list of as many, if `is_list`."""

    items: Sequence[PromptItem]
    is_list: bool


def batch_of(request: GenerateRequest, sampling: Sequence[SamplingParams]) -> Batch:
    """Returns the prompts of a request; `sampling` has one item, or one for each prompt.

    Raises:
        ApiError: 400 for fields that are wrong or contradict each other.
    """
    for name in UNSUPPORTED:
        if getattr(request, name) not in (None, []):
            raise bad_request(f"{name} is not simulated; send text or input_ids instead.")
    for params in sampling:
        params.check()
    prompts, is_list = prompts_of(request)
    size = len(prompts)
    n = check_count(sampling, size)
    parameters = list(sampling)
    if len(parameters) == 1:
        parameters *= size
    check_length("sampling_params", parameters, size)
    flags = spread("return_logprob", request.return_logprob, size, False)
    starts = spread("logprob_start_len", request.logprob_start_len, size, -1)
    tops = spread("top_logprobs_num", request.top_logprobs_num, size, 0)
    adapters: list[str | None] = spread("lora_path", request.lora_path, size, None)
    salts: list[str | None] = spread("cache_salt", request.cache_salt, size, None)
    logprob_ids = logprob_ids_of(request, size)
    items: list[PromptItem] = []
    for number, prompt in enumerate(prompts):
        item = PromptItem(
            prompt=prompt,
            rid=None,
            params=parameters[number],
            logprobs=flags[number],
            logprob_start=starts[number],
            top_logprobs=tops[number],
            logprob_ids=logprob_ids[number],
            adapter=adapters[number],
            cache_salt=salts[number] or None,
        )
        item.check()
        items += [item] * n
    is_list = is_list or n > 1
    rids = rids_of(request, size, n, is_list)
    return Batch([replace(item, rid=rid) for item, rid in zip(items, rids, strict=True)], is_list)


def prompts_of(request: GenerateRequest) -> tuple[Prompts, bool]:
    """Returns the prompts, and whether they are a list.

    Token ids have priority over texts, as in SGLang.

    Raises:
        ApiError: 400 without a prompt, and for prompts that do not match.
    """
    text = request.text
    if request.input_ids is not None:
        prompts, is_list = prompts_of_ids(request.input_ids)
        if text is not None:
            texts = text if isinstance(text, list) else [text]
            if isinstance(text, list) != is_list or len(texts) != len(prompts):
                raise bad_request("text and input_ids must have the same number of prompts.")
        return prompts, is_list
    if text is None:
        raise bad_request("Either text, input_ids or input_embeds should be provided.")
    if isinstance(text, str):
        return [text], False
    if not text:
        raise bad_request("text cannot be an empty list.")
    return text, True


def prompts_of_ids(items: Sequence[int | list[int]]) -> tuple[list[list[int]], bool]:
    """Returns prompts of token ids, and whether they are a list.

    Raises:
        ApiError: 400 for an empty list, and for ids next to lists of ids.
    """
    if not items:
        raise bad_request("input_ids cannot be empty.")
    ids = [item for item in paced(items) if isinstance(item, int)]
    prompts = [item for item in paced(items) if isinstance(item, list)]
    if ids and prompts:
        raise bad_request("input_ids must be token IDs or lists of token IDs.")
    if ids:
        return [ids], False
    return prompts, True


def check_count(sampling: Sequence[SamplingParams], prompts: int) -> int:
    """Returns the number of replies to each prompt.

    Raises:
        ApiError: 400 for numbers that differ, and for too many replies.
    """
    counts = {params.n or 1 for params in sampling}
    if len(counts) > 1:
        raise bad_request("n must be the same in all sampling_params.")
    n = max(counts, default=1)
    if prompts * n > MAX_PROMPTS:
        raise bad_request(f"a request can have at most {MAX_PROMPTS} prompts, got {prompts * n}")
    return n


def rids_of(request: GenerateRequest, size: int, n: int, is_list: bool) -> Sequence[str | None]:
    """Returns the ids of all replies; None for an id to draw.

    Raises:
        ApiError: 400 for too many or too few ids, and for an id that is repeated.
        MemoryFullError, MemoryExceededError: as `claim_choices`.
    """
    rid = request.rid
    if size * n > 1:
        claim_choices(size * n, len(rid) if isinstance(rid, str) else 0)
    if rid is None:
        return [None] * (size * n)
    if isinstance(rid, str):
        if not is_list:
            return [rid]
        return [f"{rid}_{number}" for number in range(size * n)]
    check_length("rid", rid, size)
    if len(set(rid)) < len(rid):
        raise bad_request("Duplicate request IDs detected within the request.")
    if n > 1:
        return [None] * (size * n)
    return rid


def logprob_ids_of(request: GenerateRequest, size: int) -> list[list[int]]:
    """Returns, for each prompt, the token ids whose log probabilities are shown.

    Raises:
        ApiError: 400 for ids next to lists of ids, or a list of another length.
    """
    items = request.token_ids_logprob
    if not items:
        return [[] for _ in range(size)]
    ids = [item for item in items if isinstance(item, int)]
    if len(ids) == len(items):
        return [ids] * size
    check_length("token_ids_logprob", items, size)
    if ids:
        raise bad_request("token_ids_logprob must contain token IDs or lists of token IDs.")
    return [item if isinstance(item, list) else [] for item in items]


def check_length(name: str, values: Sequence[object], size: int) -> None:
    """Raises ApiError 400 unless a list has an item for each prompt."""
    if len(values) != size:
        raise bad_request(
            f"The length of {name} ({len(values)}) must equal the batch size ({size})."
        )


def spread(name: str, value: T | list[T] | None, size: int, default: T) -> list[T]:
    """Returns a value for each prompt. Raises ApiError 400 for a list of another length."""
    if value is None:
        return [default] * size
    if not isinstance(value, list):
        return [value] * size
    check_length(name, value, size)
    return value
