"""``POST /v2/embed``: embeddings as Cohere's SDK asks for them, and its answer in vLLM's order of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import UNSET, Raw, Struct, UnsetType, field

from app.http.errors import bad_request
from app.protocol.coercion import Misfit
from app.protocol.decoding import Request
from app.protocol.options import Int64
from app.protocol.pooling import EmbeddingRequest

EmbeddingType = Literal["float", "binary", "ubinary", "base64"]


class ImageUrl(Struct):
    """Where an image is."""

    url: str


class ContentPart(Struct, kw_only=True):
    """A text or an image."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: ImageUrl | None = None

    def __post_init__(self) -> None:
        if getattr(self, self.type) is None:
            raise Misfit(f"{self.type} beside its type")

    def as_chat(self) -> dict[str, object]:
        """The part of a message's content."""
        image = self.image_url
        value: object = self.text if image is None or self.type == "text" else {"url": image.url}
        return {"type": self.type, self.type: value}


class MixedInput(Struct):
    """An input of several parts."""

    content: list[ContentPart]


class CohereEmbedRequest(Request, kw_only=True):
    """The body of ``POST /v2/embed``."""

    model: str | None = None
    input_type: str | None = None
    """Names an instruction of the model that goes in front of every input."""
    texts: list[str] | None = None
    images: list[str] | None = None
    inputs: list[MixedInput] | None = None
    output_dimension: int | None = None
    embedding_types: list[EmbeddingType] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"
    max_tokens: int | None = None
    priority: Int64 = 0

    def __post_init__(self) -> None:
        given = [each for each in (self.texts, self.images, self.inputs) if each is not None]
        if len(given) != 1 or not given[0]:
            raise Misfit("exactly one of texts, images and inputs, and it must not be empty")

    @property
    def has_images(self) -> bool:
        """An image is among the inputs."""
        kinds = {part.type for each in self.inputs or () for part in each.content}
        return self.images is not None or "image_url" in kinds

    def as_embedding(self, instruction: str, has_template: bool) -> EmbeddingRequest:
        """The same for ``POST /v1/embeddings``; without a chat template an instruction precedes each text.

        ApiError 400 for a negative `max_tokens`.
        """
        keep = None if self.truncate == "NONE" else -1 if self.max_tokens is None else self.max_tokens
        if keep is not None and keep < -1:
            raise bad_request(f"max_tokens must be -1 or more, got {keep}")
        if self.texts is None or instruction and has_template:
            content: dict[str, Any] = {"messages": self._conversations(instruction)}
        else:
            content = {"input": [instruction + text for text in self.texts]}
        return EmbeddingRequest(
            model=self.model,
            dimensions=self.output_dimension,
            truncate_prompt_tokens=keep,
            truncation_side="left" if self.truncate == "START" else None,
            priority=self.priority,
            **content,
        )

    def _conversations(self, instruction: str) -> list[list[dict[str, object]]]:
        """One a text, an image or a mixed input; the instruction is the system's message."""
        contents: list[list[dict[str, object]]] = [
            [{"type": "text", "text": text}] for text in self.texts or ()
        ]
        contents += [[{"type": "image_url", "image_url": {"url": url}}] for url in self.images or ()]
        contents += [[part.as_chat() for part in each.content] for each in self.inputs or ()]
        first: list[dict[str, object]] = []
        if instruction:
            first = [{"role": "system", "content": [{"type": "text", "text": instruction}]}]
        return [[*first, {"role": "user", "content": content}] for content in contents]


class EmbeddingsByType(Struct, kw_only=True):
    """Every vector in each of the forms that were asked for."""

    float_: Raw | UnsetType = field(default=UNSET, name="float")
    binary: Sequence[list[int]] | UnsetType = UNSET
    ubinary: Sequence[list[int]] | UnsetType = UNSET
    base64: Sequence[str] | UnsetType = UNSET


class ApiVersion(Struct):
    """Of Cohere's API."""

    version: str = "2"


class BilledUnits(Struct):
    """Tokens; with an image all of them are the image's."""

    input_tokens: int
    image_tokens: int


class Meta(Struct):
    """What the request has cost."""

    api_version: ApiVersion
    billed_units: BilledUnits


class CohereEmbedResponse(Struct, kw_only=True):
    """A whole answer."""

    id: str
    embeddings: EmbeddingsByType
    texts: list[str] | UnsetType = UNSET
    meta: Meta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"
