"""Definitions of the terms that the texts of the lessons use."""

import re

TERMS = {
    "block": "the KV cache of 16 tokens",
    "chunk": "the part of a prompt that one step computes",
    "decode": "the generation of output tokens, one per step and request",
    "KV cache": "GPU memory for the tokens of the running requests",
    "p99": "the value that 99 % of the measurements do not exceed",
    "preempted": "stopped, because other requests need its blocks",
    "prefill": "the computation of the prompt, before the first token",
    "prefix hit": "a prompt whose first tokens are still in the KV cache",
    "slot": "a place for a running request (max-num-seqs)",
    "step": "one run of the model, which computes tokens of all running requests",
    "stream": "a request whose tokens are sent one by one",
    "transfer": "the copy of a KV cache from one engine to another",
}


def terms_of(text: str) -> dict[str, str]:
    """Returns the terms that a text contains, also in the plural, with their definitions."""
    terms: dict[str, str] = {}
    for term, definition in TERMS.items():
        if re.search(rf"\b{term}s?\b", text, re.IGNORECASE):
            terms[term] = definition
    return terms
