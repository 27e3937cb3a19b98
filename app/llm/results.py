"""What the library answers, as dictionaries: results, items of a stream, statistics, facts of the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.llm.errors import RequestError
from app.llm.requests import EngineOutput
from app.tokenization.base import ChatOptions, Message, TokenizerInputError

if TYPE_CHECKING:
    from app.llm.engine import LLMEngine

Prompt = str | Sequence[int]
Prompts = Prompt | Sequence[Prompt]
Result = dict[str, object]


class Choice:
    """A reply that is put together."""

    def __init__(self, request_id: str, prompt: Prompt) -> None:
        self.finish_reason: str | None = None
        self._prompt, self._request_id = prompt, request_id
        self._outputs: list[EngineOutput] = []
        self._text, self._count = "", 0

    def add(self, output: EngineOutput) -> None:
        self._outputs.append(output)
        self._text += output.text
        self._count += len(output.token_ids)
        self.finish_reason = output.finish_reason

    @property
    def index(self) -> int:
        return self._outputs[-1].index

    def item(self) -> Result:
        """The item of a stream that the last output makes."""
        last = self._outputs[-1]
        return {
            "request_id": self._request_id,
            "index": self.index,
            "token": last.text,
            "token_id": last.token_ids[0] if last.token_ids else None,
            "text": self._text,
            "finished": self.finish_reason is not None,
            "finish_reason": self.finish_reason,
            "tokens_generated": self._count,
            "total_tokens": last.prompt_tokens + self._count,
        }

    def result(self) -> Result:
        outputs, last = self._outputs, self._outputs[-1]
        result: Result = {
            "request_id": self._request_id,
            "prompt": self._prompt,
            "generated_text": self._text,
            "token_ids": [token_id for output in outputs for token_id in output.token_ids],
            "tokens_generated": self._count,
            "prompt_tokens": last.prompt_tokens,
            "cached_tokens": last.cached_tokens,
            "total_tokens": last.prompt_tokens + self._count,
            "finish_reason": self.finish_reason,
            "stop_reason": last.stop_reason,
        }
        extra: Mapping[str, object] = {
            "error": last.error,
            "logprobs": [it for output in outputs for it in output.logprobs] or None,
            "prompt_logprobs": outputs[0].prompt_logprobs,
        }
        return result | {name: value for name, value in extra.items() if value is not None}


def prompt_list(prompts: Prompts) -> list[Prompt]:
    """One text, the ids of one, or several of either."""
    if isinstance(prompts, str):
        return [prompts]
    several = [it for it in prompts if not isinstance(it, int)]
    return several if len(several) == len(prompts) else [[it for it in prompts if isinstance(it, int)]]


def encode_chat(
    engine: LLMEngine, messages: Sequence[Message], system_prompt: str | None = None
) -> list[int]:
    """The prompt of a conversation by the model's own template."""
    if engine.tokenizer is None:
        raise RequestError("The model has no tokenizer: prompts are token ids.")
    if system_prompt is not None:
        messages = [{"role": "system", "content": system_prompt}, *messages]
    try:
        return engine.tokenizer.encode_chat(messages, ChatOptions())
    except TokenizerInputError as error:
        raise RequestError(str(error)) from error


def stats_of(engine: LLMEngine, uptime: float) -> Result:
    stats, cache = engine.stats, engine.cache
    over = stats.completed + stats.failed
    return {
        "uptime": uptime,
        "total_requests": stats.requests,
        "completed_requests": stats.completed,
        "failed_requests": stats.failed,
        "success_rate": stats.completed / over if over else 1.0,
        "requests_per_second": over / uptime if uptime else 0.0,
        "memory_stats": {
            "total_blocks": cache.capacity,
            "allocated_blocks": cache.capacity - cache.free,
            "free_blocks": cache.free,
            "utilization": cache.usage,
            "total_memory": engine.runner.store.size_bytes,
        },
        "model_stats": {
            "tokens_generated": stats.generated_tokens,
            "prompt_tokens": stats.prompt_tokens,
            "cached_tokens": stats.prefix_hits,
            "inference_count": stats.steps,
            "total_inference_time": stats.step_s,
            "average_inference_time": stats.step_s / stats.steps if stats.steps else 0.0,
            "tokens_per_second": stats.generated_tokens / stats.step_s if stats.step_s else 0.0,
        },
        "scheduler_stats": {
            "queue_size": engine.num_waiting,
            "active_requests": engine.num_running,
            "preemptions": engine.scheduler.preemptions,
        },
    }


def info_of(engine: LLMEngine, model: str) -> Result:
    config = engine.runner.config
    return {
        "model_name": model,
        "architecture": config.architecture,
        "num_parameters": config.num_parameters,
        "max_seq_length": engine.max_tokens,
        "vocab_size": config.vocab_size,
        **engine.runner.device.info(),
    }
