"""The answer to a batch of chats."""

from tests.client import in_process

BATCH = "/v1/chat/completions/batch"
ASKED = {"role": "user", "content": "a"}
BEGUN = {"role": "assistant", "content": "Well"}


def test_batch_chat_echoes_the_last_message_of_each_conversation() -> None:
    conversations = [[ASKED], [ASKED, BEGUN]]
    body = {
        "messages": conversations,
        "max_tokens": 2,
        "echo": True,
        "prompt_logprobs": 1,
        "return_token_ids": True,
        "return_prompt_text": True,
        "kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False},
    }
    with in_process() as client:
        for adds_prompt, roles, echoes in (
            (True, ["assistant", "assistant"], ["", "Well"]),
            (False, ["user", "assistant"], ["a", "Well"]),
        ):
            answer = client.post(BATCH, body | {"add_generation_prompt": adds_prompt}).json()
            for name in ("prompt_logprobs", "prompt_token_ids", "prompt_text"):
                assert answer[name] is None
            assert answer["kv_transfer_params"] is None
            messages = [choice["message"] for choice in answer["choices"]]
            assert [message["role"] for message in messages] == roles
            for message, echo in zip(messages, echoes, strict=True):
                assert message["content"].startswith(echo)
            assert [len(choice["token_ids"]) for choice in answer["choices"]] == [2, 2]
