"""Records which regexes and grammars vLLM's structured output backends accept.

Run it with the Python of an environment that has xgrammar and llguidance. Those of vLLM 0.32:
`pip install xgrammar==0.2.8 llguidance==1.7.6`.

    python scripts/form_backends.py tests/extensions/forms/backends/verdicts.json

It reads the sources in the file, and replaces the verdicts. vLLM accepts a regex or a grammar if
one of the two backends does. `fidelity.judge_schemas` compares the verdicts on schemas.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path


def accepts_by_xgrammar(kind: str, source: str) -> bool:
    """Returns True if xgrammar compiles `source`."""
    import xgrammar

    parsers: dict[str, Callable[[str], object]] = {
        "regex": xgrammar.Grammar.from_regex,
        "gbnf": xgrammar.Grammar.from_ebnf,
        "lark": xgrammar.Grammar.from_lark,
    }
    try:
        parsers[kind](source)
    except Exception:  # errors of a compiled library have no common class
        return False
    return True


def accepts_by_llguidance(kind: str, source: str) -> bool:
    """Returns True if llguidance compiles `source`."""
    import llguidance

    format_name = "grammar"
    if kind == "regex":
        format_name = "regex"
    try:
        grammar = llguidance.grammar_from(format_name, source)
    except ValueError:
        return False
    return not llguidance.LLMatcher.validate_grammar(grammar, None)


def main() -> None:
    """Replaces the verdicts in the file that the command line names."""
    path = Path(sys.argv[1])
    cases = json.loads(path.read_text(encoding="utf-8"))
    for case in cases:
        kind = case["kind"]
        source = case["source"]
        is_accepted = accepts_by_xgrammar(kind, source)
        case["accepted"] = is_accepted or accepts_by_llguidance(kind, source)
    lines = ",\n".join(json.dumps(case) for case in cases)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
