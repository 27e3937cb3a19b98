"""Stands for the process that renders untrusted templates, where a test starts no process."""

from app.core.text.compiled_template import ChatTemplateCompiler
from app.core.text.template_protocol import RenderRequest


class RendererWithoutProcess:
    """Renders what the event loop hands over; `tests.core.tokenization.wire` has the process."""

    def render(self, request: RenderRequest) -> str:
        compiler = ChatTemplateCompiler(request.special_tokens, lambda: request.now, True)
        return compiler.compile(request.source).render(request.messages, request.options)
