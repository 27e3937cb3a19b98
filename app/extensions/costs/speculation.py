"""Speculative decoding of a simulated engine: `--speculative-config`, and accepted lengths.

The accepted length is the mean number of tokens of a step: the accepted drafts and the next token.
It depends on the model, its drafter and the text, so that a configuration gives it, as with vLLM's
synthetic acceptance, or a public measurement of the same model does.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from app.core.engine.profile import SpeculationRates
from config.declaration import ConfigError
from vllm_facts.speculative import (
    DraftConfig,
    conditional_rates,
    rates_of_length,
    read_draft_config,
    synthetic_drafts,
)

TABLE = Path(__file__).with_name("accepted_lengths.json")
MTP = "mtp"
NGRAM = "ngram"
PRICED_METHODS = ("draft_model", "eagle", "eagle3", MTP, NGRAM)
"""Methods whose drafts have a known cost."""
SYNTHETIC = (
    "give rejection_sample_method=synthetic with synthetic_acceptance_length, or with"
    " synthetic_acceptance_rates"
)


class AcceptedLengths(Struct, frozen=True):
    """Accepted lengths that were measured with one model and its drafter."""

    model: str
    """A part of the model's name, in lower case."""
    method: str
    source: str
    lengths: Mapping[int, float]
    """Number of drafts -> accepted length."""
    draft_vocabulary: int = 0
    """Tokens that the drafter knows; 0 for the usual number."""


class Speculation(Struct, frozen=True, kw_only=True):
    """A `speculative_config`."""

    method: str
    """`mtp` for each of vLLM's methods with a module of the model itself."""
    draft_count: int
    """Drafts of a sequence in a step."""
    model: str = ""
    """The drafter: a name, or the path of its `config.json` or folder."""
    in_parallel: bool = False
    """All drafts of a sequence are computed in one pass."""
    slots: int = 0
    """Tokens of a step that each sequence takes for its drafts, besides its own."""
    lookahead: int = 0
    """Tokens for which each sequence holds blocks besides its own."""
    acceptance: tuple[float, ...] = ()
    """Chance of each draft after accepted ones; empty if it is to be found by the model."""
    text: str = ""
    """The configuration as vLLM takes it."""

    @property
    def accepted_length(self) -> float:
        """Mean number of tokens of a sequence in a step."""
        length = 1.0
        chance = 1.0
        for rate in self.acceptance:
            chance *= rate
            length += chance
        return length

    @property
    def rates(self) -> SpeculationRates:
        """The rates of a profile."""
        return SpeculationRates(
            acceptance=self.acceptance, draft_slots=self.slots, lookahead=self.lookahead
        )


def read_speculation(text: str) -> Speculation | None:
    """Returns the speculation of a `speculative_config` as JSON; None for `null` and `{}`.

    Raises:
        ValueError: vLLM would not start; the message completes "the value ...".
    """
    drafts = synthetic_drafts(text)
    config = read_draft_config(text)
    if config == DraftConfig():
        return None
    try:
        draft_count = config.draft_count()
        slots = config.draft_slots(())
    except ValueError as error:
        raise ValueError(f"is not a valid vLLM speculative_config: {error}") from None
    acceptance: tuple[float, ...] = ()
    if drafts is not None:
        acceptance = drafts.acceptance
        slots = drafts.slots
    method = config.effective_method()
    if method.endswith(f"_{MTP}"):
        method = MTP
    return Speculation(
        method=method,
        draft_count=draft_count,
        model=config.model or "",
        in_parallel=config.parallel_drafting,
        slots=slots,
        lookahead=config.lookahead(),
        acceptance=acceptance,
        text=text,
    )


def with_acceptance(speculation: Speculation, model: str) -> tuple[Speculation, str]:
    """Returns the speculation with its acceptance, and a text about the source of this number.

    `model` is the name or the path of the model whose tokens are drafted.

    Raises:
        ConfigError: The configuration has no acceptance, and nothing public has it either.
    """
    if speculation.acceptance:
        return speculation, f"accepted length {speculation.accepted_length:.2f}, as given"
    measured = find_lengths(speculation.method, model)
    if measured is None:
        names = sorted(f"{entry.model} with {entry.method}" for entry in read_lengths())
        raise ConfigError(
            f"speculative-config: the accepted length of {speculation.method} with {model} is"
            f" unknown (lengths are known for {', '.join(names)}); {SYNTHETIC}"
        )
    length = measured.lengths.get(speculation.draft_count)
    if length is None:
        counts = sorted(measured.lengths)
        raise ConfigError(
            f"speculative-config: num_speculative_tokens {speculation.draft_count}: the"
            f" accepted lengths of {measured.model} are known only for {counts[0]} to {counts[-1]}"
            f" draft tokens; {SYNTHETIC}"
        )
    rates = rates_of_length(length, speculation.draft_count)
    filled = msgspec.structs.replace(speculation, acceptance=conditional_rates(rates))
    return filled, f"accepted length {length:.2f} ({measured.source})"


def waits_for_drafts(speculation: Speculation | None) -> bool:
    """Returns whether vLLM schedules a step only when the one before has ended, for its drafts."""
    return speculation is not None and speculation.method == NGRAM


def find_lengths(method: str, model: str) -> AcceptedLengths | None:
    """Returns the accepted lengths of a model by a method, if they were measured."""
    for entry in read_lengths():
        if entry.method == method and entry.model in model.lower():
            return entry
    return None


@cache
def read_lengths() -> tuple[AcceptedLengths, ...]:
    """Returns all public accepted lengths."""
    return msgspec.json.decode(TABLE.read_bytes(), type=tuple[AcceptedLengths, ...])
