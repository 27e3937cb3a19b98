"""The lessons of the console: six small loads, each explained in two sentences.

`lesson_engine` plays a lesson. Each has the limits of an engine that make its effect visible, and
its requests.
"""

from app.extensions.console.lesson import Arrival, EngineSize, Lesson, repeated

STREAMS = repeated(count=8, every_s=0.02, prompt_tokens=64, output_tokens=400)
"""Streams that another request disturbs, or does not."""
LONG_PROMPT = 24_000
LONG_BESIDE_STREAMS = (
    *STREAMS,
    Arrival(at_s=1.5, prompt_tokens=LONG_PROMPT, output_tokens=50),
)
"""Two lessons with engines of different step sizes have these requests."""
LONG_PREFILL_S = 1.2
"""Time that another engine needs for the long prompt, about."""

LESSONS = (
    Lesson(
        name="kv-cache-full",
        title="The KV cache is full",
        text=(
            "Each prompt needs 100 of 819 blocks, so eight requests run and the others wait, "
            "although 32 slots exist. "
            "If requests wait although slots are free, and the KV cache is near 100 %, "
            "memory is the limit."
        ),
        engine=EngineSize(num_gpu_blocks=820),
        arrivals=repeated(count=90, every_s=0.04, prompt_tokens=1600, output_tokens=30),
    ),
    Lesson(
        name="preemption",
        title="Preemption",
        text=(
            "Twelve short prompts fit into 160 blocks, but their replies grow until no block is "
            "free, and the engine takes the blocks of the newest requests (orange). "
            "A preempted request waits until others end, and the steps show that its tokens are "
            "computed again: its stream has a gap of seconds."
        ),
        engine=EngineSize(num_gpu_blocks=161),
        arrivals=repeated(count=12, every_s=0.03, prompt_tokens=64, output_tokens=400),
    ),
    Lesson(
        name="chunked-prefill",
        title="Chunked prefill",
        text=(
            "A step has room for 1,024 tokens, so the prompt of 24,000 tokens is computed in 24 "
            "steps, and each of them also gives every stream a token. "
            "The streams slow down but never stop, and the first token of the long "
            "prompt is sent later."
        ),
        engine=EngineSize(max_num_batched_tokens=1024),
        arrivals=LONG_BESIDE_STREAMS,
    ),
    Lesson(
        name="prefix-hit",
        title="A prefix hit",
        text=(
            "The first six prompts of 6,000 tokens are all different; the next six begin with the "
            "5,984 tokens of one that was computed before. "
            "Their prefill almost disappears, their first token is sent immediately, and "
            "they share the "
            "same blocks."
        ),
        engine=EngineSize(),
        arrivals=[
            Arrival(at_s=0.2 + 0.5 * number, prompt_tokens=6000, output_tokens=120, prefix=prefix)
            for number, prefix in enumerate((0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1))
        ],
    ),
    Lesson(
        name="long-prompt",
        title="A long prompt next to streams",
        text=(
            "A step has room for 32,768 tokens, so the prompt of 24,000 tokens is computed in one "
            "step of a second. "
            "All eight streams stop for this step: each has one gap of 1.2 s between tokens, which "
            "even the p99 hides."
        ),
        engine=EngineSize(max_num_batched_tokens=32_768),
        arrivals=LONG_BESIDE_STREAMS,
    ),
    Lesson(
        name="prefill-decode-apart",
        title="Separate prefill and decode",
        text=(
            "The same long prompt is computed on another engine for a second; here the request "
            "waits only for its KV cache (gray) and decodes. "
            "The streams keep their pace, and the long request gets its first token only a little "
            "later."
        ),
        engine=EngineSize(max_num_batched_tokens=32_768),
        arrivals=[
            *STREAMS,
            Arrival(
                at_s=1.5 + LONG_PREFILL_S,
                prompt_tokens=LONG_PROMPT,
                output_tokens=50,
                is_remote=True,
            ),
        ],
    ),
)
"""In the order of the page."""


def find_lesson(name: str) -> Lesson | None:
    """Returns the lesson of this name, or None."""
    for lesson in LESSONS:
        if lesson.name == name:
            return lesson
    return None
