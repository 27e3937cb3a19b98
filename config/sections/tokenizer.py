"""How text becomes tokens."""

from dataclasses import dataclass

from config.fields import setting
from config.kinds import Duration
from config.rules import positive


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings:
    """How text becomes tokens."""

    tokenizer: str | None = setting(
        None,
        path=True,
        help="Folder, tokenizer.json file or Hugging Face name; the embedded tokenizer when empty.",
    )
    render_url: str | None = setting(
        None, help="Base URL of a vLLM render service that tokenizes instead of this process."
    )
    render_timeout: Duration = setting(
        30.0, help="Longest wait for an answer of the render service.", rule=positive()
    )
    force_dummy_tokenizer: bool = setting(
        False, help="Use the embedded tokenizer even when the model's own could be found."
    )
    hf_token: str | None = setting(
        None, env=("HF_TOKEN",), secret=True, help="Access token for the Hugging Face hub."
    )
    chat_template: str | None = setting(
        None, path=True, help="Jinja chat template, as a file or as its text; the tokenizer's own when empty."
    )
