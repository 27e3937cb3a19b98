"""Lists of files, each as path, or as model=path for the requests of one model."""

from typing import Annotated

from msgspec import Meta

ALL_MODELS = ""
"""Model of an item without a model."""
ModelFiles = Annotated[
    tuple[Annotated[str, Meta(pattern=r"\A(?!\s*\Z|[^=]*=\s*\Z)")], ...],
    Meta(description="must name a file in every item"),
]
"""Items are a path, or `model=path`; the path must not be blank."""


def model_and_path(item: str) -> tuple[str, str]:
    """Splits an item into model and path."""
    model, equals, path = item.partition("=")
    if not equals:
        return ALL_MODELS, item.strip()
    return model.strip(), path.strip()
