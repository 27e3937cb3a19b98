"""Reads of labels as the first token of a reply; a hash of the prompt determines probabilities."""

import math
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b

from app.core.api.pipeline import RequestPipeline
from app.core.protocol.completions import TokenIds
from app.core.server.http.errors import bad_request
from app.core.text.base import ChatOptions
from app.core.text.huggingface import LocalTokenizer
from app.extensions.label_reads.questions import LABELS, Question

MIN_LABEL_MASS = 0.5
"""Minimum probability of all labels together, in the whole vocabulary."""
MAX_QUESTIONS = 64
LOGIT_RANGE = 8.0
"""Difference of the largest and the smallest possible logit of a label."""
TEMPLATE_DEFAULTS: Mapping[str, object] = {"enable_thinking": False}
LabelTokens = tuple[Mapping[str, int], TokenIds]
"""The token of each label, and the end of a prompt behind which labels encode to these tokens."""


def label_probabilities(prompt: TokenIds, labels: Sequence[int]) -> list[float]:
    """Returns the probability of each label as the next token.

    The probabilities are pseudorandom, and the same for the same prompt.
    """
    prompt_hash = blake2b(array("I", prompt).tobytes(), digest_size=4)

    def draw(salt: int) -> float:
        salted_hash = prompt_hash.copy()
        salted_hash.update(b" %d" % salt)
        return int.from_bytes(salted_hash.digest(), "big") / 2**32

    weights = {label: math.exp(LOGIT_RANGE * (draw(label) - 0.5)) for label in labels}
    label_mass = MIN_LABEL_MASS + (1 - MIN_LABEL_MASS) * draw(-1)
    total_weight = math.fsum(weights.values()) / label_mass
    return [weights[label] / total_weight for label in labels]


def label_tokens(pipeline: RequestPipeline) -> LabelTokens | None:
    """Returns None unless each label is one distinct token at the beginning of a reply."""
    tokenizer = pipeline.tokenizer
    if not isinstance(tokenizer, LocalTokenizer):
        return None
    added_ids = tokenizer.backend.get_added_tokens_decoder().keys()
    messages = [{"role": "user", "content": "x"}]
    options = ChatOptions(chat_template_kwargs=TEMPLATE_DEFAULTS)
    prompt = tokenizer.encode_chat(messages, options)
    start = 0
    for position, token_id in enumerate(prompt, start=1):
        if token_id in added_ids:
            start = position
    tail = prompt[start:]
    text = tokenizer.decode(tail, False)
    ids: dict[str, int] = {}
    for labels in LABELS.values():
        for label in labels:
            *prefix, label_id = tokenizer.encode(text + label)
            if prefix != tail or label_id in ids.values():
                return None
            ids[label] = label_id
    return ids, tail


def question_prompt(
    pipeline: RequestPipeline,
    state: str,
    question: Question,
    template_kwargs: Mapping[str, object],
    *,
    tail: TokenIds,
    instructions: str | None = None,
) -> TokenIds:
    """Returns state and question as a chat prompt.

    Raises:
        ApiError: 400 where the prompt does not end with `tail`: no reply would begin with a label.
    """
    messages: list[dict[str, object]] = [{"role": "user", "content": f"{state}\n\n{question.text}"}]
    if instructions:
        messages.insert(0, {"role": "system", "content": instructions})
    options = ChatOptions(chat_template_kwargs=template_kwargs)
    ids = pipeline.tokenizer.encode_chat(messages, options)
    if ids[len(ids) - len(tail) :] != tail:
        raise bad_request("the label tokens at the end of this prompt are unknown")
    return ids


def check_joint(joint: bool) -> None:
    """Raises ApiError 400 for questions that are to be read together: no model here can."""
    if joint:
        raise bad_request(
            "joint: this model reads each question separately; joint reads require DiffusionGemma"
        )
