"""The interface of the rules that turn the size of an image into prompt tokens.

Each model family has one rule, a struct with the facts of its processor. Facts have the names of
the family's `preprocessor_config.json`, so that `--mm-processor-kwargs` can replace them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

SCOPES = ("images_kwargs", "image_kwargs")
"""Objects in `--mm-processor-kwargs` with arguments for images alone; they take precedence."""
MAX_RATIO = 200
"""Maximum ratio of the sides of an image that is resized to a grid of patches."""
MAX_TILES = 64
"""Maximum number of tiles: more would make the list of their arrangements slow to search."""

Positive = Annotated[int, Meta(ge=1, le=1 << 40)]
Count = Annotated[int, Meta(ge=0, le=1 << 40)]


class RuleError(ValueError):
    """A model rejects an image of this size."""


class ItemTokens(Struct, frozen=True):
    """Tokens that replace the placeholder of an item in a prompt."""

    length: int
    """All tokens, with the ones that mark rows, tiles, begin and end."""
    embeddings: int
    """Tokens that the encoder computes."""


class ImageRule(Struct, frozen=True, kw_only=True, tag_field="rule"):
    """A rule, with the facts of a model."""

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the tokens of an image; the sides are in pixels.

        Raises:
            RuleError: The model rejects the image.
        """
        raise NotImplementedError

    def in_prompt(self, images: int) -> ImageRule:
        """Returns the rule for each image of a prompt with `images` images."""
        return self

    def with_arguments(self, arguments: Mapping[str, object]) -> ImageRule:
        """Returns the rule under `--mm-processor-kwargs`; unknown arguments have no effect.

        Raises:
            msgspec.ValidationError: An argument has a wrong type.
        """
        scoped: dict[str, object] = dict(arguments)
        for scope in SCOPES:
            values = arguments.get(scope)
            if isinstance(values, Mapping):
                scoped |= values
        facts = asdict(self)
        facts |= self.facts_of(scoped)
        return msgspec.convert(facts, type(self), strict=False)

    def with_files(self, values: Mapping[str, object]) -> ImageRule:
        """Returns the rule with the facts in the files of a model.

        Raises:
            msgspec.ValidationError: A fact has a wrong type.
        """
        facts = asdict(self)
        for name in self.__struct_fields__:
            value = values.get(name)
            if isinstance(value, int | float | list) and not isinstance(facts[name], str):
                facts[name] = value
        facts |= self.facts_of(values)
        return msgspec.convert(facts, type(self), strict=False)

    def facts_of(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Returns the facts that the arguments replace, by name."""
        names = self.__struct_fields__
        return {
            name: value for name, value in arguments.items() if name in names and value is not None
        }


class FixedTokens(ImageRule, frozen=True, kw_only=True, tag="fixed"):
    """Every image is resized to one size, as in LLaVA 1.5 and PaliGemma."""

    embeddings: Positive
    marks: Count = 0
    """Tokens around those of the image."""

    def tokens(self, width: int, height: int) -> ItemTokens:
        """Returns the same tokens for each image."""
        return ItemTokens(self.embeddings + self.marks, self.embeddings)
