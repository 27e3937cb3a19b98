"""docs/plugins.md says what there is, and its plugin works as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from app.factory import create_app
from app.plugins.hooks import HOOKS
from config.loader import load
from tests.running_server import ROOT

PAGE = (ROOT / "docs" / "plugins.md").read_text("utf-8")


def test_the_plugin_of_the_page_works(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    path = tmp_path / "shout.py"
    path.write_text(code)
    client = create_app(load(["--plugin", str(path)], {})).test_client()
    body = {"messages": [{"role": "user", "content": "Hello"}]}
    answer = client.post("/v1/chat/completions", json=body).json
    assert answer["choices"][0]["message"]["content"] == "HELLO"
    quiet = create_app(load(["--plugin", str(path), "--shout-share", "0"], {})).test_client()
    answer = quiet.post("/v1/chat/completions", json=body).json
    assert answer["choices"][0]["message"]["content"] != "HELLO"


def test_the_page_tells_of_every_hook() -> None:
    assert [name for name in HOOKS if f"| `{name}(host" not in PAGE] == []
