"""The lessons of the console: six small loads, each explained in two sentences.

`lesson_engine` plays a lesson. Each has the limits of an engine that make its effect visible, its
requests, and the charts and figures that show the effect.
"""

from app.extensions.console.lesson import Arrival, EngineSize, Lesson, repeated

STREAMS = repeated(count=8, every_s=0.02, prompt_tokens=64, output_tokens=280)
"""Streams that another request disturbs, or does not."""
LONG_PROMPT = 24_000
LONG_ARRIVAL_S = 1.0
LONG_BESIDE_STREAMS = (
    *STREAMS,
    Arrival(at_s=LONG_ARRIVAL_S, prompt_tokens=LONG_PROMPT, output_tokens=50),
)
"""Two lessons with engines of different step sizes have these requests."""

LESSONS = (
    Lesson(
        name="kv-cache-full",
        title="The KV cache is full",
        text=(
            "Each prompt needs 100 of 819 blocks, so eight requests run (blue, then green) and "
            "the others wait (gray), although there are 32 slots. "
            "If requests wait although slots are free, and the KV cache is near 100 %, "
            "memory is the limit."
        ),
        engine=EngineSize(num_gpu_blocks=820),
        arrivals=repeated(count=90, every_s=0.04, prompt_tokens=1600, output_tokens=30),
        panels=("requests", "time", "blocks"),
        curves=("KV cache", "Sequences"),
        rows="density",
        figures=(
            "Most running requests",
            "Most waiting requests",
            "Fullest KV cache",
        ),
    ),
    Lesson(
        name="preemption",
        title="Preemption",
        text=(
            "Twelve short prompts fit into 160 blocks, but their replies grow until no block is "
            "free, and the newest requests are preempted (orange): the engine takes their blocks. "
            "A preempted request waits until others end, and then its tokens are computed again "
            "(blue in the steps): its stream has a gap of seconds."
        ),
        engine=EngineSize(num_gpu_blocks=161),
        arrivals=repeated(count=12, every_s=0.03, prompt_tokens=64, output_tokens=400),
        panels=("requests", "steps", "time", "blocks"),
        curves=("KV cache",),
        figures=(
            "Preemptions",
            "Tokens computed again",
            "Longest gap between tokens",
        ),
    ),
    Lesson(
        name="chunked-prefill",
        title="Chunked prefill",
        text=(
            "A step has room for 1,024 tokens, so the prompt of 24,000 tokens (r9) is computed in "
            "24 chunks, and each of these 24 steps also gives every stream a token. "
            "Meanwhile, the gaps between tokens of r1 to r8 grow from 12 to about 60 ms, but no "
            "stream stops, and the first token of r9 is sent after 1.34 s (without chunks, in "
            "lesson 5, after 1.26 s)."
        ),
        engine=EngineSize(max_num_batched_tokens=1024),
        arrivals=LONG_BESIDE_STREAMS,
        panels=("steps", "requests", "time", "latency"),
        curves=("Between tokens",),
        figures=(
            "Chunks of r9",
            "Longest gap between tokens",
            "First token of r9 after",
        ),
    ),
    Lesson(
        name="prefix-hit",
        title="A prefix hit",
        text=(
            "The first six prompts of 6,000 tokens are all different; each of the next six is a "
            "prefix hit, because it begins with 5,984 tokens that were computed before. "
            "Their prefill (blue) almost disappears, they share blocks (purple while they run), "
            "and they no longer cause gaps in other streams, as the prefills of the first six do."
        ),
        engine=EngineSize(),
        arrivals=[
            Arrival(at_s=0.2 + 0.5 * number, prompt_tokens=6000, output_tokens=120, prefix=prefix)
            for number, prefix in enumerate((0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1))
        ],
        panels=("requests", "steps", "blocks"),
        figures=(
            "First token of new prompts",
            "First token of prefix hits",
            "Prompt tokens from the cache",
        ),
    ),
    Lesson(
        name="long-prompt",
        title="A long prompt next to streams",
        text=(
            "A step has room for 32,768 tokens, so the whole prompt of 24,000 tokens (r9) is "
            "computed in one step, which takes 1.2 s. "
            "During this step the eight streams r1 to r8 get no token, which shows as a hole in "
            "each green bar; the p99 of the gaps between tokens hides these eight gaps."
        ),
        engine=EngineSize(max_num_batched_tokens=32_768),
        arrivals=LONG_BESIDE_STREAMS,
        panels=("requests", "steps", "time", "latency"),
        curves=("Between tokens",),
        figures=(
            "Longest gap between tokens",
            "p99 of the gaps",
            "First token of r9 after",
        ),
    ),
    Lesson(
        name="prefill-decode-apart",
        title="Separate prefill and decode",
        text=(
            "While r9 waits for engine B (gray), engine A computes its long prompt (blue); then "
            "the KV cache is copied to engine B (transfer, purple), which sends the tokens of r9 "
            "(green) next to the eight streams. "
            "These have no hole, because the long prefill runs elsewhere, and the first token "
            "of r9 is sent after 1.52 s, only 0.3 s later than in lesson 5."
        ),
        engine=EngineSize(max_num_batched_tokens=32_768),
        arrivals=[
            *STREAMS,
            Arrival(
                at_s=LONG_ARRIVAL_S,
                prompt_tokens=LONG_PROMPT,
                output_tokens=50,
                is_remote=True,
            ),
        ],
        panels=("requests", "steps", "time", "latency"),
        curves=("Between tokens",),
        figures=(
            "Longest gap between tokens",
            "Wait for its KV cache",
            "First token of r9 after",
        ),
        separates_prefill=True,
    ),
)
"""In the order of the page."""


def find_lesson(name: str) -> Lesson | None:
    """Returns the lesson of this name, or None."""
    for lesson in LESSONS:
        if lesson.name == name:
            return lesson
    return None
