"""A lesson of the console: the requests, and the engine that they load."""

from collections.abc import Sequence

from msgspec import Struct

PROFILE = "qwen3-14b-h100"
"""Profile of the engines of all lessons."""


class Arrival(Struct, frozen=True, kw_only=True):
    """A request of a lesson."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: int = 0
    """Requests with the same number, other than 0, begin with the same tokens."""
    is_remote: bool = False
    """Another engine has computed the prompt; its KV cache is transferred."""


class EngineSize(Struct, frozen=True, kw_only=True):
    """Limits of the engine of a lesson, by the names of the settings."""

    max_num_seqs: int = 32
    num_gpu_blocks: int = 4096
    max_num_batched_tokens: int = 8192

    def flags(self) -> str:
        """Returns the flags of a server with this engine."""
        return (
            f"--profile {PROFILE} --max-num-seqs {self.max_num_seqs} "
            f"--num-gpu-blocks-override {self.num_gpu_blocks} "
            f"--max-num-batched-tokens {self.max_num_batched_tokens}"
        )


class Lesson(Struct, frozen=True, kw_only=True):
    """A load, and its explanation."""

    name: str
    """Part of the lesson's address."""
    title: str
    text: str
    """Two sentences."""
    engine: EngineSize
    arrivals: Sequence[Arrival]
    panels: Sequence[str]
    """Panels of the page that come first, by their ids."""
    curves: Sequence[str] = ()
    """Charts over time that come first, by their titles."""
    rows: str = "rows"
    """How requests are shown: as `rows`, or as a `density`."""
    figures: Sequence[str]
    """Labels of the figures that the text explains, in `lesson_figures.FIGURE_OF`."""
    separates_prefill: bool = False
    """A second engine of the same size computes the prompts of the remote arrivals."""


def repeated(
    count: int, every_s: float, prompt_tokens: int, output_tokens: int, prefix: int = 0
) -> list[Arrival]:
    """Returns equal requests at equal intervals, from 0.2 s on."""
    return [
        Arrival(
            at_s=0.2 + number * every_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            prefix=prefix,
        )
        for number in range(count)
    ]
