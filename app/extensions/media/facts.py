"""Facts of models about media: rules for tokens, limits, and the tokens that templates write.

They come from the model's row of the table of models, from the files of a model in a folder, and
from the family of its architecture (`families.json`). Start reading at `facts_of`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.core.text.files import model_config
from app.extensions.media.architectures import row_of
from app.extensions.media.grids import AreaGrid, LimitedGrid, PooledGrid, SideGrid
from app.extensions.media.rules import FixedTokens
from app.extensions.media.sounds import SoundRule
from app.extensions.media.tiles import (
    AnyResolution,
    BestCanvas,
    CroppedViews,
    NearestShape,
    OverlappingCrops,
    PaddedCrops,
    PaddedTiles,
    PaddedViews,
    PanAndScan,
    SlicedImage,
    SplitImage,
)
from app.extensions.media.videos import VideoRule
from config.untrusted import UntrustedDataError, decode_untrusted

FILE = Path(__file__).with_name("families.json")
MAX_FILE_BYTES = 1 << 20
"""Maximum size of a `preprocessor_config.json`."""
Rule = (
    FixedTokens
    | AreaGrid
    | SideGrid
    | LimitedGrid
    | PooledGrid
    | NearestShape
    | BestCanvas
    | AnyResolution
    | SplitImage
    | SlicedImage
    | OverlappingCrops
    | PaddedCrops
    | PaddedTiles
    | PaddedViews
    | CroppedViews
    | PanAndScan
)


class MediaFacts(Struct, frozen=True, kw_only=True):
    """Facts of a model."""

    limits: Mapping[str, int | None]
    """Maximum items of a prompt by modality, None for no limit; without other modalities."""
    targets: Mapping[str, str] = {}
    """Text that the model's chat template writes for an item."""
    processor: str = ""
    """Class that vLLM names when it rejects an image."""
    image: Rule | None = None
    """None if the model's rule is unknown."""
    sound: SoundRule | None = None
    video: VideoRule | None = None


class Family(MediaFacts, frozen=True, kw_only=True):
    """Facts that the models of some architectures share."""

    architectures: tuple[str, ...]


class RowFacts(Struct, frozen=True):
    """Facts in the row of a model that replace those of its family."""

    image: Rule | None = None
    targets: Mapping[str, str] | None = None
    limits: Mapping[str, int | None] | None = None


@cache
def families() -> Mapping[str, Family]:
    """Returns the families by architecture."""
    table = msgspec.json.decode(FILE.read_bytes(), type=list[Family])
    return {name: family for family in table for name in family.architectures}


def facts_of(model: str) -> MediaFacts | None:
    """Returns the facts of a model by its name or folder; None for an unknown model."""
    config = model_config(model)
    if config:
        return _facts_of_files(model, config)
    row = row_of(model)
    if row is None:
        return None
    architecture, media = row
    family = families().get(architecture)
    if family is None or not media:
        return family
    facts = msgspec.convert(media, RowFacts)
    return replace(
        family,
        image=facts.image or family.image,
        targets=facts.targets or family.targets,
        limits=facts.limits or family.limits,
    )


def _facts_of_files(model: str, config: Mapping[str, object]) -> MediaFacts | None:
    architectures = config.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        return None
    family = families().get(str(architectures[0]))
    if family is None or family.image is None:
        return family
    arguments: dict[str, object] = {}
    vision = config.get("vision_config")
    if isinstance(vision, dict):
        arguments |= {"patch_size": vision.get("patch_size")}
        arguments |= {"merge_size": vision.get("spatial_merge_size")}
        arguments |= {"image_size": vision.get("image_size")}
    arguments |= {name: value for name, value in config.items() if name != "rule"}
    arguments |= _preprocessor(Path(model).expanduser())
    video = family.video
    try:
        rule = family.image.with_files(arguments)
        if video is not None and video.grid is not None:
            if video.form == "timed_grid":  # limits of all frames, not of an image
                for name in ("min_pixels", "max_pixels", "size"):
                    arguments.pop(name, None)
            arguments |= _preprocessor(Path(model).expanduser(), "video_preprocessor_config.json")
            video = replace(video, grid=video.grid.with_files(arguments))
    except msgspec.ValidationError:  # files of a form that no release of vLLM reads
        return family
    return replace(family, image=rule, video=video)


def _preprocessor(folder: Path, name: str = "preprocessor_config.json") -> dict[str, object]:
    """Returns the arguments of a processor in the files of a model."""
    path = folder / name
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            return {}
        content = decode_untrusted(path.read_bytes())
    except (OSError, UntrustedDataError):
        return {}
    if not isinstance(content, dict):
        return {}
    return content
