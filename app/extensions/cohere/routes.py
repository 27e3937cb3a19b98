"""POST /cohere/v2/chat and /cohere/v2/chat/render."""

from app.core.api.chat.prompt import chat_prompt
from app.core.api.chat.tools import check_tool_choice
from app.core.api.errors import as_api_error, forget_frames
from app.core.api.pipeline import RequestPipeline
from app.core.protocol.common import EXAMPLE_CHAT
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import STREAM_MEDIA, Route, RouteDocs, post
from app.extensions.cohere.protocol import CohereChatRequest, CohereError
from app.extensions.cohere.settings import CohereSettings
from app.extensions.cohere.writer import CohereChatWriter
from app.extensions.scale_out.render import RenderHandlers


def routes(pipeline: RequestPipeline, renders: bool) -> list[Route]:
    """Returns the chat, and its rendering if `renders`."""
    settings = pipeline.live.current.section(CohereSettings)
    renderer = RenderHandlers(pipeline)

    def create_chat(context: RequestContext) -> Response:
        """The next message of a conversation, whole or as a stream."""
        chat = pipeline.decode(context, CohereChatRequest).as_chat()
        accepted = pipeline.admit(chat, context)
        check_tool_choice(chat, pipeline.live.current.tools)
        prompt = chat_prompt(pipeline, chat, chat.messages)
        meta = pipeline.identity.response_meta("chatcmpl", context, chat.request_id, accepted.model)
        writer = CohereChatWriter(
            meta,
            len(prompt.ids),
            prompt_details=pipeline.live.current.api.enable_prompt_tokens_details,
            is_reasoning_model=settings.cohere_is_reasoning_model,
            new_id=pipeline.identity.fresh_id,
        )
        return pipeline.submit(accepted, meta, [prompt], writer=writer, context=context)

    def render_chat(context: RequestContext) -> Response:
        """The tokens and sampling parameters for a chat."""
        return renderer.respond_chat(context, pipeline.decode(context, CohereChatRequest).as_chat())

    docs = RouteDocs(
        body=(CohereChatRequest,),
        example={"model": "", "messages": EXAMPLE_CHAT, "max_tokens": 8},
        media=STREAM_MEDIA,
        errors=(CohereError,),
    )
    render_docs = RouteDocs(
        body=(CohereChatRequest,),
        example={"model": "", "messages": EXAMPLE_CHAT, "max_tokens": 8},
        errors=(CohereError,),
    )
    chat_routes = [post("/cohere/v2/chat", create_chat, cohere_error, docs=docs)]
    if renders:
        chat_routes.append(
            post("/cohere/v2/chat/render", render_chat, cohere_error, docs=render_docs)
        )
    return chat_routes


def cohere_error(error: Exception) -> Response:
    """Returns the response for `error`, in Cohere's shape."""
    api_error = as_api_error(error)
    forget_frames(error)
    return json_response(CohereError(api_error.message), api_error.status, api_error.headers)
