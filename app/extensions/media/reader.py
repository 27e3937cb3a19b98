"""Reads the media of messages, and puts their tokens into prompts.

`Reader.read` makes vLLM's checks in vLLM's order. What it returns replaces the placeholders that
the chat template wrote by the tokens that the model's rule prescribes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from app.core.api.chat.media import MediaReader, PlaceMedia
from app.core.base.caches import LimitedDict
from app.core.base.clock.pause import paced
from app.core.server.http.errors import ApiError, bad_request
from app.extensions.media.architectures import architecture_of, reads_media
from app.extensions.media.facts import MediaFacts, facts_of
from app.extensions.media.hashing import data_name, image_name
from app.extensions.media.image_headers import ImageError, OversizeError, read_image
from app.extensions.media.items import MediaItem, data_of, media_items, split_address
from app.extensions.media.limits import DEFAULT_LIMIT, item_limits, read_sides
from app.extensions.media.placing import PlacedItem, Truncation, place
from app.extensions.media.rules import ImageRule, ItemTokens, RuleError
from app.extensions.media.settings import MediaSettings
from app.extensions.media.sizes import note_size
from app.extensions.media.sound_headers import SoundError, read_sound
from app.extensions.media.sounds import RATE
from app.extensions.media.tracks import Film
from app.extensions.media.video_headers import FilmError, read_film
from config.declaration import ConfigError
from config.sections.api import json_object
from vllm_facts.registry import read_registry

if TYPE_CHECKING:
    from app.core.base.metrics.recorder import Recorder
    from app.core.protocol.common import ECTransferParams
    from app.core.text.base import Tokenizer
    from config import Settings

CACHE_BYTES = 8 << 20
MAX_TEXTS = 4_096
"""Remembered texts between frames: times of a film, which a client may choose."""
ENTRY_BYTES = 400
"""Memory of an entry of the media cache beside its name."""
ENCODED_ADDRESS: Mapping[str, str | int] = {
    "peer_host": "DUMMY",
    "peer_port": 1234,
    "size_bytes": 2359296,
    "nixl_agent_metadata_b64": "TklYTF9NRVRBREFUQV9QTEFDRUhPTERFUg==",
}
"""Address of an encoded item; no item can be fetched there."""

DEFAULT_FPS = 30.0
"""Frames per second of a film that is not read."""
Extent = tuple[int, int] | Film | int
"""Width and height of an image in pixels, a film, or the samples of a sound."""
MediaCache = LimitedDict[tuple[str, str], Extent]
"""Extents of recent items by modality and name."""


class Model(Struct, frozen=True, kw_only=True):
    """The served model."""

    name: str
    """Name in error messages."""
    path: str
    """Name or folder, which is part of the hashes."""
    max_model_len: int
    """Tokens."""
    reads_media: bool
    facts: MediaFacts | None
    """None for a model whose rules are unknown."""
    inputs: frozenset[str] = frozenset()
    """Modalities that a class without `facts` reads in vLLM's registry; empty if unknown."""
    encodes_alone: bool = False
    """The server is the encoder of a disaggregated model."""


class Reader(MediaReader):
    """Reads the media of messages for one model."""

    def __init__(
        self, model: Model, settings: MediaSettings, tokenizer: Tokenizer, *, recorder: Recorder
    ) -> None:
        """Raises ConfigError for arguments that the model's processor cannot use."""
        self.cache: MediaCache = LimitedDict(CACHE_BYTES)
        """Items of recent requests, as in vLLM's media cache."""
        self._render_cache: MediaCache = LimitedDict(CACHE_BYTES)
        """Items of recent prompts without replies, as in vLLM's second media cache."""
        self._model = model
        self._families = recorder.instruments
        self._settings = settings
        self._encode = lru_cache(MAX_TEXTS)(tokenizer.encode)
        self._limits = item_limits(settings.limit_mm_per_prompt or "{}")
        self._rule = rule_of(model.facts, settings)
        self._sound_rule = None if model.facts is None else model.facts.sound
        self._video_rule = None if model.facts is None else model.facts.video
        width, height = read_sides(settings.media_size) or (0, 0)
        self._default_size = (width, height)

    def read(
        self,
        messages: Sequence[Mapping[str, object]],
        request: Struct,
        *,
        renders_only: bool = False,
    ) -> PlaceMedia | None:
        """Returns what puts the media into the prompt of a request. Pauses between its items."""
        items = self._checked(messages)
        if not items:
            return None
        rule = self._rule
        if rule is not None:
            rule = rule.in_prompt(sum(item.modality == "image" for _, item in items))
        hits = 0
        placed: list[PlacedItem] = []
        cache = self._render_cache if renders_only else self.cache
        for number, item in paced(items):
            placed_item, is_hit = self._placed(item, number, rule, cache)
            placed.append(placed_item)
            hits += is_hit
        if not renders_only:
            self._families.counter("mm_cache_queries_total").value += len(placed)
            self._families.counter("mm_cache_hits_total").value += hits
        return partial(
            place,
            items=placed,
            encode=self._encode,
            targets={} if self._model.facts is None else self._model.facts.targets,
            max_model_len=self._model.max_model_len,
            truncation=_truncation(request),
        )

    def remember_sound(self, data: bytes, samples: int) -> str:
        """Notes a sound with so many samples at `RATE`, and returns its name for `read`."""
        name = self._data_name("audio", data)
        self.cache.add(("audio", name), samples, ENTRY_BYTES + len(name))
        return name

    def forget(self) -> None:
        """Clears the media cache."""
        self.cache.clear()

    def encoded(self, hashes: Mapping[str, Sequence[str]]) -> ECTransferParams | None:
        """Returns the address of each encoded item by its hash, on a server that encodes alone."""
        if not self._model.encodes_alone:
            return None
        addresses: dict[str, Mapping[str, str | int]] = {}
        for names in hashes.values():
            addresses |= dict.fromkeys(names, ENCODED_ADDRESS)
        return addresses or None

    def _checked(self, messages: Sequence[Mapping[str, object]]) -> list[tuple[int, MediaItem]]:
        """Returns the items with their numbers among those of their modality."""
        counts: dict[str, int] = {}
        items: list[tuple[int, MediaItem]] = []
        for item in media_items(messages):
            modality = item.modality
            if not self._model.reads_media:
                raise bad_request(f"{self._model.name} is not a multimodal model")
            number = counts.get(modality, 0)
            counts[modality] = number + 1
            self._check_count(modality, number + 1)
            if item.part_type.endswith("_embeds"):
                raise bad_request(
                    f"You must set `--enable-mm-embeds` to input `{item.part_type}`",
                    item.part_type,
                )
            items.append((number, item))
        return items

    def _check_count(self, modality: str, count: int) -> None:
        limit = self._limits.get(modality, DEFAULT_LIMIT)
        supported: int | None = None
        if self._model.facts is not None:
            supported = self._model.facts.limits.get(modality, 0)
        elif self._model.inputs and modality not in self._model.inputs:
            supported = 0
        if supported is None:
            supported = limit
        limit = min(limit, supported)
        if count > limit:
            message = f"At most {limit} {modality}(s) may be provided in one prompt."
            if count <= supported:
                message += " Set `--limit-mm-per-prompt` to increase this limit."
            raise bad_request(message, modality)

    def _placed(
        self, item: MediaItem, number: int, rule: ImageRule | None, cache: MediaCache
    ) -> tuple[PlacedItem, bool]:
        """Returns an item with its tokens and its name, and whether the cache has it."""
        modality = item.modality
        name, extent = self._loaded(item, number)
        cached = cache.get((modality, name))
        if cached is not None:
            return PlacedItem(modality, name, self._tokens(modality, cached, rule)), True
        if extent is None:
            raise bad_request(
                f"Cache miss for {modality} at index {number} but data is not provided."
            )
        tokens = self._tokens(modality, extent, rule)
        cache.add((modality, name), extent, ENTRY_BYTES + len(name))
        return PlacedItem(modality, name, tokens), False

    def _loaded(self, item: MediaItem, number: int) -> tuple[str, Extent | None]:
        """Returns the name of an item, and its extent; None for one that a `uuid` identifies."""
        modality = item.modality
        if not item.address:
            if item.uuid is None:
                raise bad_request(
                    f"multi_modal_data['{modality}'][{number}] is empty but "
                    f"multi_modal_uuids['{modality}'][{number}] is missing."
                )
            return item.uuid, None
        data = data_of(item.address)
        if data is None:
            return self._foreign(item, item.address)
        if modality == "image":
            return self._read_image(data, item.uuid)
        name = item.uuid or self._data_name(modality, data)
        if modality == "audio" and self._sound_rule is not None:
            return name, self._read_sound(data)
        if modality == "video":
            return name, self._read_film(data)
        return name, self._default_extent(modality)

    def _default_extent(self, modality: str) -> Extent:
        if modality == "audio":
            return round(self._settings.media_duration * RATE)
        if modality == "video":
            return self._default_film(self._default_size)
        return self._default_size

    def _default_film(self, size: tuple[int, int]) -> Film:
        frames = max(1, round(self._settings.media_duration * DEFAULT_FPS))
        return Film(*size, frames, DEFAULT_FPS)

    def _read_sound(self, data: bytes) -> int:
        """Returns the number of samples of a sound."""
        try:
            return read_sound(data).resampled(RATE)
        except SoundError as error:
            raise bad_request(str(error)) from None

    def _read_film(self, data: bytes) -> Extent:
        """Returns size and length of a film; the default ones for a format that is not read."""
        try:
            return read_film(data) or self._default_extent("video")
        except FilmError as error:
            raise bad_request(str(error)) from None

    def _foreign(self, item: MediaItem, address: str) -> tuple[str, Extent]:
        """Returns name and extent of an item that vLLM would fetch."""
        settings = self._settings
        has_path = bool(settings.allowed_local_media_path)
        url = split_address(address, settings.allowed_media_domains, has_path)
        extent = self._default_extent(item.modality)
        size = read_sides(url.fragment)
        if size is not None and item.modality == "video":
            extent = self._default_film(size)
        elif size is not None and item.modality == "image":
            extent = size
        note_size(item.modality, extent)
        return item.uuid or self._data_name(item.modality, address.encode()), extent

    def _read_image(self, data: bytes, uuid: str | None) -> tuple[str, tuple[int, int]]:
        try:
            header = read_image(data)
        except OversizeError as error:
            raise ApiError(500, "InternalServerError", str(error)) from None
        except ImageError as error:
            raise bad_request(f"Failed to load image: {error}") from None
        size = (header.width, header.height)
        if uuid is not None:
            return uuid, size
        algorithm = self._settings.mm_hasher_algorithm
        return image_name(algorithm, self._model.path, data, mode=header.mode), size

    def _data_name(self, modality: str, data: bytes) -> str:
        return data_name(self._settings.mm_hasher_algorithm, self._model.path, modality, data=data)

    def _tokens(self, modality: str, extent: Extent, rule: ImageRule | None) -> ItemTokens | None:
        """Returns the tokens of an item; None for one whose placeholder stays as it is."""
        if isinstance(extent, int):
            if self._sound_rule is None:
                return None
            try:
                return self._sound_rule.tokens(extent)
            except RuleError as error:
                raise bad_request(str(error)) from None
        if isinstance(extent, Film):
            if self._video_rule is None:
                return None
            try:
                return self._video_rule.tokens(extent, self._encode)
            except RuleError as error:
                raise bad_request(str(error)) from None
        if rule is None or modality != "image":
            return None
        width, height = extent
        try:
            return rule.tokens(width, height)
        except RuleError as error:
            raise bad_request(self._refusal(width, height, error)) from None

    def _refusal(self, width: int, height: int, error: RuleError) -> str:
        """Returns vLLM's words, or the reason where the class of the processor is unknown."""
        processor = "" if self._model.facts is None else self._model.facts.processor
        if not processor:
            return str(error)
        return (
            f"Failed to apply {processor} on data={{'images': [<PIL.Image.Image image mode=RGB "
            f"size={width}x{height}>]}} with kwargs={{'do_normalize': False, 'do_rescale': False, "
            "'return_tensors': 'pt'}"
        )


def model_of(settings: Settings) -> Model:
    """Returns the model that a server with `settings` serves."""
    model = settings.model
    reads = model.multimodal
    if reads is None and not settings.engine.is_real:
        reads = reads_media(model.model)
    facts = facts_of(model.model)
    inputs: frozenset[str] = frozenset()
    if facts is None and model.multimodal is None and reads:
        inputs = read_registry().inputs_of(architecture_of(model.model))
    return Model(
        name=model.served_names[0],
        path=model.model,
        max_model_len=model.max_model_len,
        reads_media=reads is not False,
        facts=facts,
        inputs=inputs,
        encodes_alone=model.mm_encoder_only,
    )


def _truncation(request: Struct) -> Truncation | None:
    max_tokens = getattr(request, "truncate_prompt_tokens", None)
    if max_tokens is None:
        return None
    return Truncation(max_tokens, getattr(request, "truncation_side", None) == "right")


def rule_of(facts: MediaFacts | None, settings: MediaSettings) -> ImageRule | None:
    """Returns the rule for images under the settings; None for an unknown model.

    Raises:
        ConfigError: The model's processor cannot use the arguments in the settings.
    """
    if facts is None or facts.image is None or settings.mm_processor_kwargs is None:
        return None if facts is None else facts.image
    arguments = json_object(settings.mm_processor_kwargs)
    try:
        return facts.image.with_arguments(arguments)
    except msgspec.ValidationError as error:
        raise ConfigError(f"setting mm-processor-kwargs: {error}") from None
