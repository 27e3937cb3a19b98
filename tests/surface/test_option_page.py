"""The page of vLLM's options, which has settings of extensions."""

from scripts.settings_tables import SERVE, options_page


def test_the_page_of_vllm_options_is_not_stale() -> None:
    assert SERVE.read_text("utf-8") == options_page(), "run: python -m scripts.settings_tables"
