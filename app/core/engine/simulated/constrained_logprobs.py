"""Log probabilities of the tokens of a constrained text.

vLLM computes them after it has excluded the tokens that the constraint forbids. Here the allowed
tokens of each place are equally likely, and all others have the log probability `EXCLUDED`.

The allowed tokens are the tokens of the choices, or one token for each character that a regular
expression allows. Other constraints have no such tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import log

from app.core.engine.constraints import AllowedTexts, Constraints, SchemaError
from app.core.engine.outputs import TokenLogprob
from app.core.engine.request import Constraint
from app.core.engine.simulated.json_text import write_usual_json
from app.core.text.base import Tokenizer

EXCLUDED = -9999.0
"""Log probability of a forbidden token, as vLLM reports it."""
CHARACTERS = "".join(map(chr, range(0x20, 0x7F))) + "\n\t"
"""Characters that are tried where a regular expression leaves the choice."""
MAX_TEXT_LENGTH = 2_000
"""Characters of a text, or of all choices, beyond which the tokens are made up.

Each place is searched again.
"""


def allowed_texts_of(constraint: Constraint, constraints: Constraints) -> AllowedTexts | None:
    """Returns the texts that `constraint` allows; None for a constraint without such a list."""
    choices = constraint.choices
    schema = constraint.schema
    if isinstance(schema, dict) and not choices:
        if "const" in schema:
            choices = (write_usual_json(schema["const"]),)
        elif isinstance(schema.get("enum"), list):
            choices = tuple(map(write_usual_json, schema["enum"]))
    if sum(map(len, choices)) > MAX_TEXT_LENGTH:
        return None
    if choices:
        return lambda text: _continued(choices, text)
    if constraint.regex is not None:
        return constraints.next_characters(constraint.regex, CHARACTERS)
    return None


def _continued(choices: Sequence[str], text: str) -> Sequence[str]:
    remaining: dict[str, str] = {}
    for choice in choices:
        if choice.startswith(text):
            rest = choice[len(text) :]
            remaining.setdefault(rest[:1], rest)
    return list(remaining.values())


class ConstrainedEntries:
    """Makes the entries of a reply from the token `start` on; other tokens have none."""

    def __init__(
        self, ids: Sequence[int], tokenizer: Tokenizer, allowed_texts: AllowedTexts, start: int
    ) -> None:
        self._tokenizer = tokenizer
        self._allowed_texts = allowed_texts
        self._start = start
        pieces = tokenizer.pieces(ids, False)
        if ids and ids[-1] == tokenizer.eos_token_id:
            pieces = [*pieces[:-1], ""]
        self._pieces = pieces
        self._starts = list(accumulate(map(len, pieces[start:]), initial=0))
        self._text = "".join(pieces[start:])

    def limited(self, entry: TokenLogprob, position: int) -> TokenLogprob:
        """Returns the entry of the token at `position`, among the tokens that are allowed there.

        The number of alternatives stays, and so does an entry about which nothing is known.
        """
        place = position - self._start
        if place < 0 or len(self._text) > MAX_TEXT_LENGTH:
            return entry
        piece = self._pieces[position]
        try:
            allowed = self._allowed_texts(self._text[: self._starts[place]])
        except SchemaError:
            return entry
        if piece[:1] not in [option[:1] for option in allowed]:
            return entry
        logprob = 0.0 - log(len(allowed))  # not -0.0
        others = self._alternatives(allowed, piece)
        top: list[tuple[int, str, float]] = [(entry.token_id, entry.token, logprob)]
        top += [(token_id, name, logprob) for token_id, name in others]
        known = {token_id for token_id, _, _ in top}
        top += [(other, name, EXCLUDED) for other, name, _ in entry.top if other not in known]
        return TokenLogprob(entry.token_id, entry.token, logprob, top[: len(entry.top)])

    def _alternatives(self, allowed: Sequence[str], piece: str) -> list[tuple[int, str]]:
        """Returns ids and names of the tokens that are allowed beside `piece`."""
        ids: list[int] = []
        for option in allowed:
            if option[:1] == piece[:1]:
                continue
            if option:
                ids.append(self._tokenizer.encode(option)[0])
            elif self._tokenizer.eos_token_id is not None:
                ids.append(self._tokenizer.eos_token_id)
        return list(zip(ids, self._tokenizer.token_texts(ids), strict=True))
