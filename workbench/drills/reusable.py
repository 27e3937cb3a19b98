"""Tokens of prompts that an earlier prompt begins with."""

from collections.abc import Sequence

Chain = tuple[int, ...]


def reusable_tokens(prompts: Sequence[Sequence[int]], block_size: int) -> list[int]:
    """Returns, for each prompt, the tokens of its first blocks that earlier prompts begin with.

    The last token of a prompt is always computed, as in vLLM, so its block does not count.
    """
    known_blocks: set[tuple[int, Chain]] = set()
    counts = []
    for prompt in prompts:
        parent = 0
        reusable = 0
        is_known = True
        for end in range(block_size, len(prompt) + 1, block_size):
            block = (parent, tuple(prompt[end - block_size : end]))
            is_known = is_known and block in known_blocks
            if is_known and end < len(prompt):
                reusable = end
            known_blocks.add(block)
            parent = hash(block)
        counts.append(reusable)
    return counts
