"""POST /v1/chat/completions/batch: several conversations, each answered by one choice."""

from itertools import chain

from msgspec.structs import replace

from app.core.api.chat.completions import echoed_text, response_options
from app.core.api.chat.media import BuiltPrompt
from app.core.api.chat.prompt import chat_prompt
from app.core.api.chat.writer import ChatResponseOptions, ChatWriter
from app.core.api.choice_state import ChoiceState
from app.core.api.identity import ResponseMeta
from app.core.api.pipeline import RequestPipeline
from app.core.protocol import chat as wire
from app.core.protocol.common import EXAMPLE_CHAT
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request
from app.core.server.http.response import Response
from app.core.server.http.route import Route, RouteDocs, post
from app.extensions.chat_batch.protocol import FIELDS_CHECKED_LATE_IN_BATCH, BatchChatRequest


class BatchWriter(ChatWriter):
    """Writes the answer to a batch, which shows nothing about the prompts."""

    def __init__(
        self, meta: ResponseMeta, options: ChatResponseOptions, request: BatchChatRequest
    ) -> None:
        super().__init__(meta, replace(options, echo=None))
        self._request = request

    def _render_choice(self, index: int, choice: ChoiceState) -> wire.ChatChoice:
        chat_choice = super()._render_choice(index, choice)
        message = chat_choice.message
        last_message = self._request.messages[index][-1]
        if not self._request.add_generation_prompt:
            message.role = str(last_message["role"])
        content = message.content or ""
        if self._request.echo and isinstance(content, str):
            message.content = echoed_text(last_message, message.role) + content
        return chat_choice

    def whole(self) -> wire.ChatCompletion:
        """Returns the whole answer."""
        answer = super().whole()
        answer.prompt_logprobs = None
        answer.prompt_token_ids = None
        answer.prompt_text = None
        answer.kv_transfer_params = None
        answer.ec_transfer_params = None
        if answer.usage is not None:
            answer.usage.completion_tokens_details = None
        return answer


def routes(pipeline: RequestPipeline) -> list[Route]:
    """Returns the route of the batch."""

    def chat_batch(context: RequestContext) -> Response:
        """The next message of each of several conversations, as the choices of one answer."""
        request = decode_batch(pipeline, context)
        accepted = pipeline.admit(request, context)
        prompts = [chat_prompt(pipeline, request, messages) for messages in request.messages]
        meta = pipeline.identity.response_meta(
            "chatcmpl", context, request.request_id, accepted.model
        )
        all_ids = list(chain.from_iterable(prompt.ids for prompt in prompts))
        last_messages = request.messages[-1]
        all_prompts = BuiltPrompt(all_ids, "", features=prompts[-1].features)
        if len(prompts) > 1:
            meta = replace(meta, joint="_")
        options = response_options(pipeline, accepted, last_messages, all_prompts)
        options = replace(options, n=len(prompts), prompt_details=False, metrics=False)
        writer = BatchWriter(meta, options, request)
        return pipeline.submit(accepted, meta, prompts, writer, context)

    docs = RouteDocs(
        body=(BatchChatRequest,),
        example={"messages": [EXAMPLE_CHAT], "max_tokens": 8},
        answer=wire.ChatCompletion,
    )
    return [post("/v1/chat/completions/batch", chat_batch, docs=docs)]


def decode_batch(pipeline: RequestPipeline, context: RequestContext) -> BatchChatRequest:
    """Returns the request in the body.

    A field that vLLM checks late is rejected without `param`.
    """
    try:
        return pipeline.decode(context, BatchChatRequest)
    except ApiError as error:
        field = (error.param or "").removeprefix("body.").partition(".")[0]
        if error.type != "Bad Request" or field not in FIELDS_CHECKED_LATE_IN_BATCH:
            raise
        raise bad_request(error.message) from None
