"""Which servers use a render service."""

from app.core.application import tokenizer_of
from app.core.settings import load
from app.extensions.render_service.tokenizer import RenderTokenizer

SERVICE = ["--render-url", "http://127.0.0.1:9/"]


def test_render_url_takes_precedence_over_a_named_tokenizer() -> None:
    for named in ([], ["--tokenizer", "/nowhere"]):
        tokenizer = tokenizer_of(load([*SERVICE, *named], {}))
        assert isinstance(tokenizer, RenderTokenizer)
        assert tokenizer.name == "http://127.0.0.1:9"


def test_embedded_tokenizer_flag_takes_precedence_over_the_render_url() -> None:
    tokenizer = tokenizer_of(load([*SERVICE, "--force-dummy-tokenizer"], {}))
    assert tokenizer.name == "embedded"
