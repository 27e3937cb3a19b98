"""Structured outputs: masks of the allowed next tokens, by llguidance, which vLLM uses, too."""

import re
from collections.abc import Mapping
from typing import Final

import llguidance
import torch
from llguidance.gbnf_to_lark import any_to_lark

from app.engine.core.wire import TextForm, Thoughts
from app.engine.forms.grammar.lark_writer import LarkWriter
from app.llm.compile_sandbox import LIMITS, CompileSandbox
from app.llm.errors import RequestError
from app.text.huggingface import LocalTokenizer

JSON_STYLE: Final[Mapping[str, object]] = {
    "whitespace_flexible": False,  # like `json.dumps`: small models write endless blanks
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
LARK_COUNT: Final = re.compile(
    r"""("(?:\\.|[^"\\])*"|/(?:\\.|[^/\\])+/)|~\s*(\d+)\s*\.\.\s*(\d+)"""
)
"""Matches a text or a pattern, to skip them, or Lark's `~1..3`, which is `{1,3}` in the library."""
MOST_CHARACTERS: Final = 100_000
"""Most characters of a structured output: the library's slowest part takes quadratic time."""
MOST_COUNTED: Final = 2000
"""Greatest count of items in a list: the library makes a rule for each, without a limit."""
COUNT: Final = re.compile(r'"(?:min|max)(?:Items|Properties|Contains)"\s*:\s*(\d+)')
ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
MOST_ERROR: Final = 300
"""Most characters of a library error in a message."""


class FormMatcher:
    """State of one reply in its grammar, which with `thoughts` applies only after the model's
    thoughts.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, ends: list[int], thoughts: Thoughts | None
    ) -> None:
        self._matcher, self._ends, self._thoughts = matcher, ends, thoughts
        self._thinks = thoughts is not None and thoughts.begin_id is None
        self._may_think = thoughts is not None and thoughts.begin_id is not None

    def mask(self) -> torch.Tensor | None:
        """Returns True for each allowed next token; None in thoughts. RequestError for a library's
        error.

        The first token may begin the thoughts, or the text itself.
        """
        if self._thinks:
            return None
        allowed = self.form_mask()
        if self._may_think and self._thoughts is not None:
            allowed[self._thoughts.begin_id] = True
        return allowed

    def form_mask(self) -> torch.Tensor:
        allowed = (
            torch.frombuffer(bytearray(self._matcher.compute_logit_bias()), dtype=torch.uint8) > 0
        )
        if self._matcher.is_error():
            raise _refused(self._matcher.get_error())
        if allowed[self._ends[0]]:
            allowed[self._ends] = True
        return allowed

    def add(self, token_id: int) -> None:
        thoughts, may_think, self._may_think = self._thoughts, self._may_think, False
        if thoughts is not None and self._thinks:
            self._thinks = token_id != thoughts.end_id
        elif thoughts is not None and may_think and token_id == thoughts.begin_id:
            self._thinks = True
        else:
            self._matcher.consume_token(token_id)


class Forms:
    """Makes matchers for a tokenizer. Raises RequestError without an end-of-text token.

    With `cpu_limit_s` each grammar is first compiled in the sandbox, in at most so many seconds of
    CPU time.
    """

    def __init__(
        self,
        tokenizer: LocalTokenizer,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        cpu_limit_s: float | None = None,
    ) -> None:
        if not eos_token_ids:
            raise RequestError(
                "The model has no token for the end of a text, so a form could not end."
            )
        end = tokenizer.eos_token_id
        self._ends = [min(eos_token_ids) if end is None else end, *sorted(eos_token_ids)]
        self._backend, self._size = tokenizer.backend, vocab_size
        # The library gets all tokens of the model's head.
        written = tokenizer.backend.to_str()
        given = written, vocab_size, self._ends[0]
        self._tokens = llguidance.LLTokenizer(*given)
        self._sandbox = None if cpu_limit_s is None else CompileSandbox(*given, cpu_limit_s)

    def matcher(self, form: TextForm) -> FormMatcher:
        """Returns the state of one reply.

        Raises RequestError if the structured output does not compile.
        """
        for text in (
            form.json_schema,
            form.regex,
            form.grammar,
            form.structural_tag,
            "".join(form.choices),
        ):
            _check_size(text or "")
        try:
            grammar = self._grammar(form)
        except RequestError:
            raise
        except Exception as error:  # of several types: each notation has its own
            raise _refused(str(error)) from error
        if self._sandbox is not None and (flaw := self._sandbox.flaw(grammar)):
            raise _refused(flaw)
        found = llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=LIMITS)
        if found.is_error():
            raise _refused(found.get_error())
        thoughts = form.thoughts
        if thoughts and not all(
            0 <= it < self._size for it in (thoughts.end_id, thoughts.begin_id or 0)
        ):
            raise RequestError(
                f"The tags of thoughts are no tokens of a vocabulary of {self._size}."
            )
        matcher = FormMatcher(found, self._ends, thoughts)
        matcher.form_mask()  # finds an output without a first token; the library's first mask is slow
        return matcher

    def _grammar(self, form: TextForm) -> str:
        make = llguidance.LLMatcher
        if form.json_schema is not None:
            return str(make.grammar_from_json_schema(form.json_schema, defaults=JSON_STYLE))
        pattern = "|".join(map(re.escape, form.choices)) if form.choices else form.regex
        if pattern is not None:
            return str(make.grammar_from_regex(pattern))
        if form.grammar is not None:
            lark = any_to_lark(form.grammar)
            counted = LARK_COUNT.sub(lambda found: found[1] or f"{{{found[2]},{found[3]}}}", lark)
            return str(make.grammar_from_lark(counted))
        if form.structural_tag is not None:
            return str(
                make.grammar_from_lark(LarkWriter(self._is_special).write(form.structural_tag))
            )
        raise RequestError("The structured output has no form.")

    def _is_special(self, text: str) -> bool:
        token_id = self._backend.token_to_id(text)
        return token_id is not None and self._tokens.is_special_token(token_id)


def _check_size(text: str) -> None:
    if len(text) > MOST_CHARACTERS:
        raise RequestError(
            f"A form has at most {MOST_CHARACTERS} characters, this one {len(text)}."
        )
    plain = ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    if any(len(count) > 9 or int(count) > MOST_COUNTED for count in COUNT.findall(plain)):
        raise RequestError(f"A schema counts up to {MOST_COUNTED} items, not more.")


def _refused(reason: str) -> RequestError:
    line = " ".join(reason.split())[:MOST_ERROR]
    return RequestError(f"No text of the form that is asked for can be written: {line}")
