"""Scripts and plugins in one server."""

from pathlib import Path

from tests.application import app_of
from tests.extensions.scripts.requests import Books

PLUGIN = """
from app.plugins import *
API = 2

def reply_by_plugin(request, rng):
    return "by the plugin"

class TestPlugin(Plugin):
    name = "mine"

    def reply(self):
        return reply_by_plugin

EXTENSION = TestPlugin
"""


def test_script_reply_takes_precedence_over_a_plugin(books: Books, tmp_path: Path) -> None:
    rules = "rules: [{when: {message: {contains: scripted}}, then: {text: by the script}}]"
    script = books.write(rules)
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    client = app_of("--plugin", str(plugin), "--script", str(script)).test_client()
    for text, expected in (("scripted", "by the script"), ("else", "by the plugin")):
        body = {"messages": [{"role": "user", "content": text}]}
        answer = client.post("/v1/chat/completions", json=body).get_json()
        assert answer["choices"][0]["message"]["content"] == expected
