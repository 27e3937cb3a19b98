"""Tokenizer files of a Hugging Face repository: from the local cache, else from the hub."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.utils.tqdm import disable_progress_bars

from app.tokenization.base import TokenizerLoadError

FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
    "config.json",
    "generation_config.json",
)
TIMEOUT_S = 3.0
"""For each question to the hub; a download has the library's own limit (`HF_HUB_DOWNLOAD_TIMEOUT`)."""


def fetch(name: str, token: str | None = None, cache: Path | None = None) -> Path:
    """Return the folder with the tokenizer files of the repository `name`.

    `HF_HUB_OFFLINE`, `HF_HOME` and `HF_ENDPOINT` are honoured by the library, at its import.

    Raises:
        TokenizerLoadError: not in the cache, and the hub is out of reach, refuses or has no `tokenizer.json`.
    """
    disable_progress_bars()
    reason = "the repository has no tokenizer.json"
    for local_only in (True, False):
        try:
            folder = Path(
                snapshot_download(
                    name,
                    allow_patterns=list(FILES),
                    cache_dir=cache,
                    token=token,
                    etag_timeout=TIMEOUT_S,
                    local_files_only=local_only,
                )
            )
        except Exception as error:  # of several libraries: not found, gated, no network, bad name
            reason = str(error).strip().splitlines()[0]
        else:
            if (folder / "tokenizer.json").is_file():
                return folder
    raise TokenizerLoadError(f"{name} is neither in the local cache nor on the hub: {reason}")
