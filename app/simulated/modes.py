"""What is said where nothing else decides: one source of replies for each mode.

A `ReplySource` is what the reply hooks of plugins become, too: the first that has a reply is believed.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from app.dataset import Datasets
from app.engine.reply import LENGTH, STOP, Reply
from app.engine.request import EngineRequest
from app.simulated.corpus import Corpus
from app.simulated.endings import reply_length
from app.tokenization import Tokenizer

ReplySource = Callable[[EngineRequest, Random], Reply | None]
"""What is said to a request, with the randomness of that request; None leaves it to the next source."""
LengthSource = Callable[[EngineRequest, Random], int | None]
"""How many tokens a reply has (1 or more); None leaves it to the next one."""


class RandomMode:
    """Sample sentences, of as many tokens as are drawn. `length` is asked first, where there is one."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self.length: LengthSource | None = None

    def reply(self, request: EngineRequest, rng: Random) -> Reply:
        most = request.max_tokens
        wanted = None if self.length is None else self.length(request, rng)
        if request.ignore_eos:
            count = most
        elif wanted is not None:
            count = max(1, request.min_tokens, min(wanted, most))
        else:
            count = reply_length(most, request.limited, rng)
        if count < request.min_tokens:  # where it must not end yet it goes on, and ends by chance
            room = most - request.min_tokens
            count = request.min_tokens + (reply_length(room, request.limited, rng) if room > 0 else 0)
        ids, texts = self._corpus.compose(count, rng)
        return Reply(texts, ids, LENGTH if count >= most else STOP)


class EchoMode:
    """The text as it came, whatever the limit; `length` tells that the limit was reached (5.2)."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def reply(self, request: EngineRequest, rng: Random) -> Reply:
        ids = self._tokenizer.encode(request.echo_text)
        reached = request.limited and len(ids) >= request.max_tokens
        return Reply(self._tokenizer.pieces(ids), ids, LENGTH if reached else STOP)


class DatasetMode:
    """A recorded reply (5.10); none without a dataset for the model, and when that fails."""

    def __init__(self, datasets: Datasets, corpus: Corpus) -> None:
        self._datasets = datasets
        self._corpus = corpus

    def reply(self, request: EngineRequest, rng: Random) -> Reply | None:
        dataset = self._datasets.of(request.model)
        if dataset is None:
            return None
        most = request.max_tokens
        least = most if request.ignore_eos else max(1, request.min_tokens)
        found = dataset.reply(request.prompt_ids, request.turns, least, most, rng)
        if found is None:
            return None
        ids, texts = self._corpus.compose(found.missing, rng)
        return Reply([*found.texts, *texts], [*found.ids, *ids], LENGTH if found.reached_limit else STOP)
