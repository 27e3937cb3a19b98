"""Command lines of files for `study --serve` name no folder of the machine to be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workbench.study.fleet import read_serve, serve_flags


@pytest.mark.parametrize("is_in_file", [True, False])
def test_only_typed_words_name_folders_elsewhere(
    is_in_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    monkeypatch.chdir(checkout)
    draft = json.dumps({"method": "draft_model", "model": "/a/b", "num_speculative_tokens": 2})
    text = f"vllm serve {model} --max-num-seqs 8 --speculative-config '{draft}'"
    (checkout / "run.sh").write_text(text + "\n")
    [line] = read_serve(["run.sh" if is_in_file else text])
    flags, ignored = serve_flags(line)
    assert (ignored, flags.get("model")) == (
        (["--model"], None) if is_in_file else ([], str(model))
    )
    assert flags["max-num-seqs"] == "8"
    expected_draft = "b" if is_in_file else "/a/b"
    assert json.loads(flags["speculative-config"])["model"] == expected_draft
