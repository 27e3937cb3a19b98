"""One port answers chats and embeddings, under any name of a model when asked to."""

from pathlib import Path

import pytest
import requests

from tests.running_server import running_server
from tests.sdks import openai

FLAGS = ("--model", "understudy-tiny", "--served-model-name", "*", "--embeddings-with-chat")


def test_openai_sdk_can_use_any_model_name_for_chats_and_embeddings(tmp_path: Path) -> None:
    script = tmp_path / "replies.yaml"
    script.write_text("rules: [{when: {model: gpt-5}, then: {text: I am five.}}]")
    flags = ("--lora-modules", "sql=/sql", "--journal", "10", "--script", str(script))
    with running_server(*FLAGS, *flags) as server:
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")

        def chat(model: str) -> tuple[str, str | None]:
            messages = [{"role": "user", "content": "Who are you?"}]
            answer = client.chat.completions.create(model=model, messages=messages, max_tokens=4)  # type: ignore[call-overload]
            return answer.model, answer.choices[0].message.content

        assert chat("gpt-5") == ("gpt-5", "I am five.")
        assert chat("sql")[0] == "sql"
        assert chat("understudy-tiny")[0] == "understudy-tiny"
        streamed = client.completions.create(model="a/b:c", prompt="Hi", stream=True, max_tokens=3)
        assert {chunk.model for chunk in streamed} == {"a/b:c"}
        embedded = client.embeddings.create(model="text-embedding-3-small", input=["one", "two"])
        assert (embedded.model, len(embedded.data)) == ("text-embedding-3-small", 2)
        assert [model.id for model in client.models.list()] == ["understudy-tiny", "sql"]
        with pytest.raises(openai.NotFoundError, match="The model `xxx"):
            chat("x" * 300)
        metrics = requests.get(server.url + "/metrics", timeout=20).text
        assert (
            'model_name="understudy-tiny"' in metrics
            and "gpt-5" not in metrics
            and "a/b" not in metrics
        )
        [*entries] = requests.get(server.url + "/admin/journal", timeout=20).json()["entries"]
        assert [entry["model"] for entry in entries[:2]] == ["gpt-5", "sql"]


def test_unknown_model_name_returns_404_by_default() -> None:
    with running_server("--served-model-name", "one", "two") as server:
        body = {"model": "three", "prompt": "Hi", "max_tokens": 1}
        refused = requests.post(server.url + "/v1/completions", json=body, timeout=20)
        assert refused.status_code == 404
        body["model"] = "two"
        assert (
            requests.post(server.url + "/v1/completions", json=body, timeout=20).json()["model"]
            == "one"
        )
