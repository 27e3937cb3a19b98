"""Structured outputs: masks of the allowed next tokens, by llguidance, which vLLM uses, too."""

import re
from collections.abc import Mapping
from typing import Final

import llguidance
import torch

from app.core.engine.choice_request import TextForm, Thoughts
from app.core.text.huggingface import LocalTokenizer
from app.extensions.forms.grammar.lark_writer import LarkWriter
from app.extensions.llm.compile_sandbox import LIMITS, CompileSandbox
from app.extensions.llm.errors import RequestError
from app.extensions.llm.grammar_text import lark_of

JSON_STYLE: Final[Mapping[str, object]] = {
    "whitespace_flexible": False,  # like `json.dumps`: small models write endless blanks
    "item_separator": ", ",
    "key_separator": ": ",
    "coerce_one_of": True,
}
MAX_LENGTH: Final = 100_000
"""Maximum length of a structured output: the library's slowest part takes quadratic time."""
MAX_ITEMS: Final = 2000
"""Maximum count of items in a list: the library makes a rule for each, without a limit."""
MAX_COUNT_DIGITS: Final = 9
ITEM_COUNT: Final = re.compile(r'"(?:min|max)(?:Items|Properties|Contains)"\s*:\s*(\d+)')
UNICODE_ESCAPE: Final = re.compile(r"\\u([0-9a-fA-F]{4})")
MAX_ERROR_LENGTH: Final = 300
"""Maximum length of a library error in a message."""


class Forms:
    """Compiles structured outputs for a tokenizer.

    With `cpu_limit_s` each grammar is first compiled in the sandbox, in at most so many seconds of
    CPU time.

    Raises:
        RequestError: The model has no end-of-text token.
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
                "The model has no end token, so structured outputs are not supported."
            )
        end_id = tokenizer.eos_token_id
        if end_id is None:
            end_id = min(eos_token_ids)
        self._end_ids = [end_id, *sorted(eos_token_ids)]
        self._backend = tokenizer.backend
        self._vocab_size = vocab_size
        # The library gets all tokens of the model's head.
        tokenizer_json = tokenizer.backend.to_str()
        self._tokens = llguidance.LLTokenizer(tokenizer_json, vocab_size, end_id)
        self._sandbox: CompileSandbox | None = None
        if cpu_limit_s is not None:
            self._sandbox = CompileSandbox(tokenizer_json, vocab_size, end_id, cpu_limit_s)

    def matcher(self, form: TextForm) -> "FormMatcher":
        """Returns the state of one reply.

        Raises:
            RequestError: The structured output does not compile.
        """
        for text in (form.json_schema, form.regex, form.grammar, form.structural_tag):
            _check_size(text or "")
        _check_size("".join(form.choices))
        try:
            grammar = self._grammar(form)
        except RequestError:
            raise
        except Exception as error:  # of several types: each notation has its own
            raise _form_error(str(error)) from error
        if self._sandbox is not None:
            compile_error = self._sandbox.find_error(grammar)
            if compile_error:
                raise _form_error(compile_error)
        library_matcher = llguidance.LLMatcher(self._tokens, grammar, log_level=0, limits=LIMITS)
        if library_matcher.is_error():
            raise _form_error(library_matcher.get_error())
        self._check_thoughts(form.thoughts)
        matcher = FormMatcher(library_matcher, self._end_ids, form.thoughts)
        # Finds an output without a first token; the library's first mask is slow.
        matcher.form_mask()
        return matcher

    def _check_thoughts(self, thoughts: Thoughts | None) -> None:
        if thoughts is None:
            return
        for token_id in (thoughts.end_id, thoughts.begin_id or 0):
            if not 0 <= token_id < self._vocab_size:
                raise RequestError(
                    f"The vocabulary of {self._vocab_size} tokens does not contain the reasoning "
                    "tags."
                )

    def _grammar(self, form: TextForm) -> str:
        library = llguidance.LLMatcher
        if form.json_schema is not None:
            return str(library.grammar_from_json_schema(form.json_schema, defaults=JSON_STYLE))
        pattern = form.regex
        if form.choices:
            pattern = "|".join(map(re.escape, form.choices))
        if pattern is not None:
            return str(library.grammar_from_regex(pattern))
        if form.grammar is not None:
            lark = lark_of(form.grammar)
        elif form.structural_tag is not None:
            lark = LarkWriter(self._is_special).write(form.structural_tag)
        else:
            raise RequestError("The constraint for the structured output is empty.")
        return str(library.grammar_from_lark(lark))

    def _is_special(self, text: str) -> bool:
        token_id = self._backend.token_to_id(text)
        return token_id is not None and self._tokens.is_special_token(token_id)


class FormMatcher:
    """State of one reply in its grammar.

    With `thoughts` the grammar applies only after the model's thoughts.
    """

    def __init__(
        self, matcher: llguidance.LLMatcher, end_ids: list[int], thoughts: Thoughts | None
    ) -> None:
        self._matcher = matcher
        self._end_ids = end_ids
        self._thoughts = thoughts
        self._is_thinking = thoughts is not None and thoughts.begin_id is None
        self._may_think = thoughts is not None and thoughts.begin_id is not None

    def mask(self) -> torch.Tensor | None:
        """Returns True for each allowed next token; None in thoughts.

        The first token may begin the thoughts, or the text itself.

        Raises:
            RequestError: The library has an error.
        """
        if self._is_thinking:
            return None
        allowed = self.form_mask()
        if self._may_think and self._thoughts is not None:
            allowed[self._thoughts.begin_id] = True
        return allowed

    def form_mask(self) -> torch.Tensor:
        """Returns True for each next token that the grammar allows.

        Raises:
            RequestError: The library has an error.
        """
        content = bytearray(self._matcher.compute_logit_bias())
        allowed = torch.frombuffer(content, dtype=torch.uint8) > 0
        if self._matcher.is_error():
            raise _form_error(self._matcher.get_error())
        if allowed[self._end_ids[0]]:
            allowed[self._end_ids] = True
        return allowed

    def add(self, token_id: int) -> None:
        """Adds the next token of the reply."""
        thoughts = self._thoughts
        may_think = self._may_think
        self._may_think = False
        if thoughts is not None and self._is_thinking:
            self._is_thinking = token_id != thoughts.end_id
        elif thoughts is not None and may_think and token_id == thoughts.begin_id:
            self._is_thinking = True
        else:
            self._matcher.consume_token(token_id)


def _unescape(match: re.Match[str]) -> str:
    return chr(int(match[1], 16))


def _check_size(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise RequestError(
            f"A constraint can have at most {MAX_LENGTH} characters, got {len(text)}."
        )
    for count in ITEM_COUNT.findall(UNICODE_ESCAPE.sub(_unescape, text)):
        if len(count) > MAX_COUNT_DIGITS or int(count) > MAX_ITEMS:
            raise RequestError(f"A schema must not require more than {MAX_ITEMS} items.")


def _form_error(reason: str) -> RequestError:
    line = " ".join(reason.split())[:MAX_ERROR_LENGTH]
    return RequestError(f"The structured output cannot be produced: {line}")
