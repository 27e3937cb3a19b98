"""Composes the batches of a step, and reads its logits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

import numpy
import torch

from app.extensions.llm.errors import LLMError
from app.extensions.llm.llama_cpp.cells import BlockCells
from app.extensions.llm.step import Chunk, Rows, StepLogits

if TYPE_CHECKING:
    from app.extensions.llm.sequence import Sequence


class BatchContext(Protocol):
    """The part of `binding.Context` that computes."""

    @property
    def room(self) -> int:
        """Tokens that the batch can still take."""

    @property
    def has_tokens(self) -> bool:
        """True if the batch has tokens."""

    def add(self, sequence: int, start: int, tokens: list[int], first_wanted: int) -> None:
        """Adds tokens of a sequence to the batch."""

    def decode(self) -> int:
        """Computes the batch, and returns 0 or an error."""

    def drop_batch(self) -> None:
        """Removes all tokens from the batch."""

    def logits(self, rows: int) -> Rows:
        """Returns the logits of the latest decode."""


class StepBatches:
    """The batches of one step, and the logits that it wants."""

    def __init__(
        self, context: BatchContext, blocks: BlockCells[Sequence], vocab_size: int
    ) -> None:
        self._context = context
        self._blocks = blocks
        self._vocab_size = vocab_size
        self._chunks: list[tuple[Chunk, int]] = []
        """Chunks, and the count of their rows of logits: after each of their last tokens."""
        self._batch_rows = 0
        """Rows of logits of the present batch."""
        self._logits: list[Rows] = []
        """Logits of each batch, in order of the chunks."""

    def run(self, chunks: Iterable[Chunk]) -> StepLogits:
        """Computes the chunks, and returns their logits.

        Raises:
            LLMError: The library has failed.
        """
        self._blocks.release_ended()
        for chunk in chunks:
            self._add(chunk)
        self._compute()
        return self._step_logits()

    def _add(self, chunk: Chunk) -> None:
        """Adds a chunk, and the tokens that its sequence has lost."""
        blocks = self._blocks
        sequence = chunk.sequence
        number, tokens = blocks.place(sequence, chunk.blocks, chunk.start, self._compute)
        if tokens < chunk.start:
            ids = [*sequence.prompt_ids, *sequence.output_ids]
            blocks.write(sequence, chunk.blocks, chunk.start, is_lost=True)
            self._add_tokens(sequence, number, tokens, ids[tokens : chunk.start], rows=0)
        rows = 0
        if chunk.prompt_logits:
            rows = len(chunk.tokens)
        elif chunk.samples:
            rows = 1 + chunk.drafts
        self._chunks.append((chunk, rows))
        new_tokens = list(chunk.tokens)
        shared = 0
        if rows < len(new_tokens):
            shared = blocks.share_part(
                sequence, chunk.blocks, new_tokens, limit=len(new_tokens) - rows
            )
        blocks.write(sequence, chunk.blocks, chunk.end, is_lost=False)
        self._note_tokens(chunk)
        self._add_tokens(sequence, number, chunk.start + shared, new_tokens[shared:], rows)

    def _note_tokens(self, chunk: Chunk) -> None:
        """Notes the tokens of the blocks that a chunk fills."""
        size = self._blocks.size
        start = chunk.start // size * size
        end = chunk.end // size * size
        if chunk.drafts or start == end:  # drafts may be wrong
            return
        sequence = chunk.sequence
        prompt_tokens = len(sequence.prompt_ids)
        first_output = max(0, start - prompt_tokens)
        ids = [
            *sequence.prompt_ids[start:end],
            *sequence.output_ids[first_output : max(0, end - prompt_tokens)],
        ]
        self._blocks.note_tokens(sequence, start, ids)

    def _step_logits(self) -> StepLogits:
        if len(self._logits) == 1:
            [array] = self._logits
        else:
            no_rows = numpy.empty((0, self._vocab_size), numpy.float32)
            array = numpy.concatenate([no_rows, *self._logits])
        sampled = []
        rows: list[int] = []
        prompts = []
        first = 0
        for chunk, count in self._chunks:
            last = first + count
            if chunk.prompt_logits:
                prompts.append((chunk, torch.from_numpy(array[first:last])))
            if chunk.samples:
                sampled.append(chunk)
                rows += range(last - 1 - chunk.drafts, last)
            first = last
        if len(rows) < len(array):
            array = array[rows]
        return StepLogits(sampled, array, prompts)

    def _add_tokens(
        self, sequence: Sequence, number: int, start: int, tokens: list[int], rows: int
    ) -> None:
        """Adds tokens, with logits for the last `rows`, in several batches if need be."""
        while tokens:
            if not self._context.room:
                self._compute()
            part = tokens[: self._context.room]
            tokens = tokens[len(part) :]
            part_rows = min(len(part), max(0, rows - len(tokens)))
            self._context.add(number, start, part, first_wanted=len(part) - part_rows)
            self._blocks.added(sequence)
            self._batch_rows += part_rows
            rows -= part_rows
            start += len(part)

    def _compute(self) -> None:
        context = self._context
        if not context.has_tokens:
            return
        self._logits = [logits.copy() for logits in self._logits]  # this decode changes them
        status = context.decode()
        if status:
            context.drop_batch()
            raise LLMError(f"llama.cpp failed with status {status}:")
        if self._batch_rows:
            self._logits.append(context.logits(self._batch_rows))
        self._batch_rows = 0
        self._blocks.computed()
