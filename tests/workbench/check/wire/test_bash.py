"""The words of command lines in scripts are those that bash passes."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.workbench.check.test_shell import words_of

BASH = shutil.which("bash")
SHOW = """\
vllm() {
  shift
  printf '\1'
  for word in "$@"; do printf '%s\\0' "$word"; done
}
"""
PIECES = (
    "--port",
    "8000",
    "'single $X'",
    '"double \\"quoted\\" \\\\ "',
    '"$A b"',
    "$A",
    "a\\ b",
    "x'y'\"z\"",
    "--json='{\"a\": [1, 2]}'",
    "\\\n",
    "''",
    "2>/dev/null",
    "#no",
    "a#b",
    "${A}",
    "{a,b",
    "=",
    "-tp=2",
)
ENDS = ("", "\n", " # comment\n", ";", " && true\n", " || true\n", " 2>&1\n", "\n\n# c\n")


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(PIECES), max_size=6), st.sampled_from(ENDS)),
        min_size=1,
        max_size=3,
    )
)
def test_words_are_those_of_bash(commands: list[tuple[list[str], str]]) -> None:
    code = "A='one'\n"
    for pieces, end in commands:
        code += "vllm serve m " + " ".join(pieces) + (end or "\n")
        if not code.endswith("\n"):
            code += "\n"
    assert BASH is not None
    result = subprocess.run(
        [BASH, "--norc", "-c", SHOW + code], capture_output=True, text=True, check=False
    )
    assume("syntax error" not in result.stderr)  # a line with only ";"
    expected = [part.split("\0")[:-1] for part in result.stdout.split("\1")[1:]]
    assert words_of(code) == expected
