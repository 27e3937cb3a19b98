"""Kinds of models: vLLM's registry of architectures, and ends of names as a fallback.

`python -m scripts.version_diff.history` reads both from vLLM's distributions into registry.json.
Start reading at `Registry.kind_of`.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from vllm_facts.names import Periods, has_begun, holds
from vllm_facts.version import NEWEST

FILE = Path(__file__).with_name("registry.json")
Runner = Literal["generate", "pooling"]
POOLING_TASKS: Final = (
    *("embed&token_classify", "embed", "classify", "token_embed", "token_classify", "plugin"),
)
"""Tasks of poolers, the ones that vLLM prefers first."""
CONVERTED_TASKS: Final = {
    "embed": frozenset(("embed", "token_embed")),
    "classify": frozenset(("classify", "token_classify")),
    "reward": frozenset(("token_classify",)),
    "none": frozenset[str](),
}
"""Conversion of a model into a pooling model -> tasks of the result."""
INPUTS: Final = ("image", "video", "audio")
TRANSCRIPTION_ONLY: Final = "transcription-only"
NAMES_EMBEDDERS_SINCE: Final = "0.22"
"""Version since which an error speaks of embedding models, as in `generation_refusal`."""
FIRST: Final = "first"
"""Word of the suffixes of a release that compares them before it looks into the registry."""


class Entry(Struct):
    """An architecture or a suffix, with words for the abilities of its models."""

    periods: Periods
    does: list[tuple[str, str]] = []

    def words_in(self, version: str) -> tuple[str, ...] | None:
        """Returns the words that hold in a version; None if the version lacks the entry."""
        if not holds(self.periods, version):
            return None
        texts = [text for since, text in self.does if has_begun(since, version)]
        if not texts:
            return ()
        return tuple(texts[-1].split())


class Kind(Struct, frozen=True):
    """The use that vLLM makes of a model, without further options."""

    architecture: str = ""
    """The architecture that decided; empty if none of a model did."""
    runner: Runner = "generate"
    tasks: frozenset[str] = frozenset()
    """Tasks of the pooler, if the runner is `pooling`."""
    own_tasks: frozenset[str] = frozenset()
    """Tasks of the pooler that the class has itself, whatever the runner is."""
    generates: bool = True
    """True if the class generates text, also where vLLM prefers to pool."""
    is_registered: bool = False
    transcribes: bool = False
    transcribes_only: bool = False
    """True if the model has no chats, as Whisper."""
    has_known_inputs: bool = False
    """True if the registry has the architecture or its base, so that `reads_media` is known."""
    reads_media: bool = False
    inputs: frozenset[str] = frozenset()
    """Kinds of media among `INPUTS`; empty if only the class knows them."""

    @property
    def pooling_task(self) -> str:
        """The task that vLLM prefers; empty for a generating model."""
        if self.runner != "pooling":
            return ""
        if "token_classify" in self.tasks and "ForTokenClassification" in self.architecture:
            return "token_classify"
        return next((task for task in POOLING_TASKS if task in self.tasks), "")


class Default(NamedTuple):
    """The use of architectures with a certain end."""

    pools: bool
    conversion: str
    """Key of `CONVERTED_TASKS`."""

    @classmethod
    def of(cls, words: Sequence[str]) -> "Default":
        """Returns the default by the words of a suffix; without a suffix, a model generates."""
        if not words:
            return cls(pools=False, conversion="none")
        return cls(pools=words[0] == "pooling", conversion=words[1])


class Registry(Struct):
    """The tables that decide what a model is."""

    architectures: dict[str, Entry]
    suffixes: dict[str, Entry]

    def kind_of(self, architectures: Sequence[str], version: str, runner: str = "") -> Kind:
        """Returns the kind of a model.

        As in vLLM, the first architecture decides that the registry has, or that ends in a known
        suffix: a class that pools is a pooling model, and another one that generates is not.

        Args:
            architectures: Those of the config.json.
            version: A minor version or a release, such as 0.32 or 0.10.1.
            runner: The value of `--runner`; empty for `auto`.
        """
        for architecture in architectures:
            words = _words_of(self.architectures, architecture, version)
            default_words = self._default(architecture, version)
            if words is None and default_words is None:
                continue
            kind = _kind(
                architecture,
                words,
                default=Default.of(default_words or ()),
                runner=runner,
                suffixes_first=self.compares_suffixes_first(version),
            )
            if words is not None:
                return kind
            return _with_inputs(kind, self._base_words(architecture, version))
        if runner == "pooling":
            return Kind(runner="pooling", tasks=CONVERTED_TASKS["embed"])
        return Kind()

    def reads_media(self, architecture: str) -> bool | None:
        """Returns whether the models of an architecture read more than text; None if unknown.

        The last version with the architecture or its base decides.
        """
        entry = self.architectures.get(architecture)
        if entry is not None and entry.does:
            return "multimodal" in entry.does[-1][1].split()
        words = self._base_words(architecture, NEWEST)
        if not words:
            return None
        return "multimodal" in words

    def inputs_of(self, architecture: str) -> frozenset[str]:
        """Returns the kinds of media that an architecture reads; empty where none are known.

        The last version with the architecture or its base decides.
        """
        words = self._base_words(architecture, NEWEST)
        entry = self.architectures.get(architecture)
        if entry is not None and entry.does:
            words = frozenset(entry.does[-1][1].split())
        return words.intersection(INPUTS)

    def compares_suffixes_first(self, version: str) -> bool:
        """Returns whether a version judges by the suffix before it looks into the registry."""
        words = [entry.words_in(version) or () for entry in self.suffixes.values()]
        return any(FIRST in each for each in words)

    def names_in(self, version: str) -> list[str]:
        """Returns the architectures that the registry of a version has."""
        return [name for name, entry in self.architectures.items() if holds(entry.periods, version)]

    def _base_words(self, architecture: str, version: str) -> frozenset[str]:
        """Returns the words of the base of an architecture; empty without a base.

        The base of Qwen3VLForSequenceClassification is Qwen3VLForConditionalGeneration.
        """
        ends = [end for end in self.suffixes if architecture.endswith(end)]
        for end in sorted(ends, key=len, reverse=True):
            for other_end in self.suffixes:
                base = architecture.removesuffix(end) + other_end
                words = _words_of(self.architectures, base, version)
                if words is not None:
                    return frozenset(words)
        return frozenset()

    def _default(self, architecture: str, version: str) -> tuple[str, ...] | None:
        """Returns the words of the longest suffix of an architecture; None without one."""
        for start in range(len(architecture)):
            words = _words_of(self.suffixes, architecture[start:], version)
            if words is not None:
                return words
        return None


def _words_of(entries: Mapping[str, Entry], name: str, version: str) -> tuple[str, ...] | None:
    """Returns the words of an entry in a version; None if the version lacks the entry."""
    entry = entries.get(name)
    if entry is None:
        return None
    return entry.words_in(version)


def _kind(
    architecture: str,
    words: tuple[str, ...] | None,
    *,
    default: Default,
    runner: str,
    suffixes_first: bool,
) -> Kind:
    """Returns the kind by the words of the class and of the suffix."""
    known_words = frozenset(words or ())
    own_tasks = known_words.intersection(POOLING_TASKS)
    if runner == "pooling":
        is_pooling = True
    elif runner == "generate":
        is_pooling = False
    elif suffixes_first:
        is_pooling = _pools_by_suffix(words, default)
    elif own_tasks or "generate" in known_words:
        is_pooling = bool(own_tasks)
    else:
        is_pooling = default.pools
    kind = Kind(
        architecture=architecture,
        own_tasks=own_tasks,
        generates="generate" in known_words or (words is None and not default.pools),
        is_registered=words is not None,
        has_known_inputs=words is not None,
        transcribes="transcription" in known_words,
        transcribes_only=TRANSCRIPTION_ONLY in known_words,
        reads_media="multimodal" in known_words,
        inputs=known_words.intersection(INPUTS),
    )
    if not is_pooling:
        return kind
    # Models without a pooler of their own become embedding models, unless the suffix converts.
    conversion = "embed"
    if default.pools:
        conversion = default.conversion
    return replace(kind, runner="pooling", tasks=own_tasks or CONVERTED_TASKS[conversion])


def generation_refusal(kind: Kind, version: str) -> str:
    """Returns vLLM's error about `--runner generate` for a class that does not generate."""
    if kind.own_tasks and has_begun(NAMES_EMBEDDERS_SINCE, version):
        return (
            "Embedding models do not support `--runner generate`. "
            "Use `--runner pooling` or `--runner auto` for embedding models."
        )
    return "This model does not support `--runner generate`."


def _with_inputs(kind: Kind, words: frozenset[str]) -> Kind:
    """Returns a kind whose model reads what another class with these words reads."""
    return replace(
        kind,
        has_known_inputs=bool(words),
        reads_media="multimodal" in words,
        inputs=words.intersection(INPUTS),
    )


def _pools_by_suffix(words: tuple[str, ...] | None, default: Default) -> bool:
    """Returns whether a release pools that judges by the name first.

    `words` belong to the class; None for an architecture that the registry lacks.
    """
    if words is None:
        return default.pools
    if "cross-encoder" in words or default.pools:
        return True
    return "generate" not in words


@cache
def read_registry() -> Registry:
    """Reads the registry, which takes half a millisecond. It is a constant of the process."""
    return msgspec.json.decode(FILE.read_bytes(), type=Registry)
