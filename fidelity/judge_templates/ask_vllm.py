"""Asks a real vLLM for the prompts of requests; runs in the environment of `fidelity.oracle`.

    .oracle/0.32.0/environment/bin/python fidelity/judge_templates/ask_vllm.py questions.json prompts

The first file is ``{"now": ..., "tokens": ..., "templates": {name: source}, "requests": {name: [api,
body]}}``. Each line of the second is ``[template, request, prompt]``, with null instead of the
prompt of a rejected request. No server and no model are needed: the script calls what vLLM's server
calls up to the text of the prompt.
"""

import json
import os
import sys
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Renderer:
    """Renders requests of all APIs with vLLM's code."""

    def __init__(self, tokens: dict[str, str]) -> None:
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast

        self._tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer(models.WordLevel({"": 0}, "")), **tokens
        )
        self._model = SimpleNamespace(
            code_revision=None,
            enable_prompt_embeds=False,
            multimodal_config=None,
            revision=None,
            trust_remote_code=False,
        )

    def prompt(self, template: str, api: str, body: dict[str, Any]) -> str:
        """Returns the prompt of a request."""
        from vllm.renderers import hf

        try:
            from vllm.renderers.chat_utils import parse_chat_messages
        except ImportError:  # before 0.32
            from vllm.entrypoints.chat_utils import parse_chat_messages

        request, messages, tools = self._read(template, api, body)
        params = request.build_chat_params(template, "auto").with_defaults(
            {"tools": tools, "tokenize": False}
        )
        content_format = hf.resolve_chat_template_content_format(
            chat_template=params.chat_template,
            tools=tools,
            given_format=params.chat_template_content_format,
            tokenizer=self._tokenizer,
            model_config=self._model,
        )
        conversation, _, _ = parse_chat_messages(messages, self._model, content_format)
        keywords = params.get_apply_chat_template_kwargs()
        prompt: str = hf.safe_apply_chat_template(
            self._model, self._tokenizer, conversation, **keywords
        )
        return prompt

    def _read(self, template: str, api: str, body: dict[str, Any]) -> Any:
        """Returns the request with the messages and tools of its template."""
        from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
        from vllm.entrypoints.anthropic.serving import AnthropicServingMessages as Messages
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.responses import utils
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
        from vllm.entrypoints.serve.tokenize.protocol import TokenizeChatRequest

        if api == "responses":
            response = ResponsesRequest(**body)
            messages = utils.construct_input_messages(
                request_instructions=response.instructions, request_input=response.input
            )
            return response, messages, utils.construct_tool_dicts(response.tools, "auto")
        if api == "messages":
            merges = Messages._detect_merge_inline_system(template)
            if hasattr(Messages, "to_chat_completion_request"):
                convert = Messages.to_chat_completion_request
            else:  # before 0.29
                convert = Messages._convert_anthropic_to_openai_request
            request = convert(AnthropicMessagesRequest(**body), merge_inline_system=merges)
        else:
            kind = TokenizeChatRequest if api == "tokenize" else ChatCompletionRequest
            request = kind(**body)
        tools = request.tools and [tool.model_dump() for tool in request.tools]
        return request, request.messages, tools


def main() -> None:
    """Writes the prompts as they are rendered."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import transformers.utils.chat_template_utils as utils

    questions_file, prompts_file = map(Path, sys.argv[1:])
    questions = json.loads(questions_file.read_text(encoding="utf-8"))
    now = datetime.fromisoformat(questions["now"])
    utils.datetime = SimpleNamespace(now=lambda: now)
    renderer = Renderer(questions["tokens"])
    with prompts_file.open("w", encoding="utf-8") as prompts:
        for template_name, template in questions["templates"].items():
            for name, (api, body) in questions["requests"].items():
                # The schema changes bodies.
                own_body = json.loads(json.dumps(body))
                try:
                    prompt = renderer.prompt(template, api, own_body)
                except Exception as error:  # a template is a program, and may fail in any way
                    print(f"{template_name} {name}: {error}", file=sys.stderr)
                    prompt = None
                prompts.write(json.dumps([template_name, name, prompt]) + "\n")


if __name__ == "__main__":
    main()
