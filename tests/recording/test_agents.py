"""Real agents go round their loop against the script of docs/scripts.md, and again on its recording."""

from __future__ import annotations

from tests.running_server import ROOT

SCRIPT = ROOT / "examples" / "scripts" / "weather.yaml"


def test_the_script_is_short_and_the_one_of_the_documents() -> None:
    text = SCRIPT.read_text()
    assert len(text.splitlines()) <= 20
    assert f"```yaml\n{text}```" in (ROOT / "docs" / "scripts.md").read_text()
