"""Events of a stream of /generate, for outputs as an engine emits them."""

import json
from collections.abc import Sequence
from typing import Any

from app.core.api.weight_spans import Weights
from app.core.engine.errors import EngineFailedError
from app.core.engine.outputs import EngineOutput, Failed, Finish, Part, Started, Tokens
from app.extensions.sglang.batches import batch_of
from app.extensions.sglang.generate_protocol import GenerateRequest
from app.extensions.sglang.generate_writer import Choice, GenerateWriter, WriterOptions

OPTIONS = WriterOptions(
    shows_texts=False,
    shows_prompt=False,
    eos_token_id=0,
    weights=Weights(),
    token_texts=list,
    arrival_s=1.0,
)


def writer(**sampling_params: Any) -> GenerateWriter:
    request = GenerateRequest(text="Hello", sampling_params=sampling_params)
    [item] = batch_of(request, request.sampling()).items
    return GenerateWriter([Choice(item, "mine", [1, 2], OPTIONS)], is_list=False)


def events(outputs: Sequence[EngineOutput], **sampling_params: Any) -> list[Any]:
    stream = writer(**sampling_params)
    texts = [stream.chunk(output).decode() for output in outputs]
    return [json.loads(text.removeprefix("data: ")) for text in texts if text]


def tokens(count: int, finish: Finish | None = None) -> list[EngineOutput]:
    outputs: list[EngineOutput] = [Started(0, 1.5, cached_tokens=1)]
    for number in range(count):
        is_last = number == count - 1
        outputs.append(
            Tokens(0, [f' "{number}"'], [number], 2.0, finish=finish if is_last else None)
        )
    return outputs


def test_each_event_contains_the_text_so_far() -> None:
    chunks = events(tokens(3, Finish("stop")))
    assert [event["text"] for event in chunks] == [' "0"', ' "0" "1"', ' "0" "1" "2"']
    assert [event["output_ids"] for event in chunks] == [[0], [0, 1], [0, 1, 2]]
    infos = [event["meta_info"] for event in chunks]
    assert [info["completion_tokens"] for info in infos] == [1, 2, 3]
    assert [info["cached_tokens"] for info in infos] == [1, 1, 1]
    end = {"type": "stop", "matched": 0}
    assert [info["finish_reason"] for info in infos] == [None, None, end]
    assert [info.get("e2e_latency") for info in infos] == [None, None, 1.0]


def test_stream_interval_combines_the_tokens_of_several_steps_in_one_event() -> None:
    chunks = events(tokens(10, Finish("length")), stream_interval=4)
    assert [len(event["output_ids"]) for event in chunks] == [1, 5, 9, 10]
    assert chunks[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 10}


def test_reasoning_is_included_in_the_text_but_images_are_not() -> None:
    outputs: list[EngineOutput] = [
        Started(0, 1.0),
        Tokens(0, ["think"], [5], 1.0, part=Part("reasoning")),
        Tokens(0, ["data:"], [6], 1.0, part=Part("image")),
        Tokens(0, [" say"], [7], 1.0, finish=Finish("stop", "end")),
    ]
    event = events(outputs)[-1]
    assert (event["text"], event["output_ids"]) == ("think say", [5, 7])
    assert event["meta_info"]["reasoning_tokens"] == 1
    assert event["meta_info"]["finish_reason"] == {"type": "stop", "matched": "end"}


def test_engine_failure_ends_a_stream_with_the_finish_reason_abort() -> None:
    event = events([*tokens(2), Failed(0, EngineFailedError("The engine is gone."))])[-1]
    assert event["text"] == ' "0" "1"'
    assert event["meta_info"]["finish_reason"] == {
        "type": "abort",
        "message": "The engine is gone.",
        "status_code": 500,
        "err_type": None,
    }
