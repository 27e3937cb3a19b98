"""Structural tags in the notation of Lark."""

import json
import re
from typing import Any

from app.extensions.forms.grammar.lark_writer import LarkWriter


def written(form: dict[str, Any]) -> str:
    return LarkWriter(lambda text: False).write(json.dumps({"format": form}))


def test_patterns_are_written_between_slashes_and_keep_their_meaning() -> None:
    pattern = "a/b\\/c\nd\\\ne"
    [line] = re.findall("(?m)^r0: /(.*)/$", written({"type": "regex", "pattern": pattern}))
    assert re.fullmatch(line, "a/b/c\nd\ne")
    assert not re.search(r"(?<!\\)/", line)
