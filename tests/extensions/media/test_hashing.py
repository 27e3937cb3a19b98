"""Names of media, against those of vLLM's hasher for the same bytes."""

import pytest

from app.extensions.media.hashing import Algorithm, data_name, image_name

RGB = (
    "89504e470d0a1a0a0000000d4948445200000002000000030802000000368849d60000000b4944415478"
    "9c6360c0020000150001aa6597c40000000049454e44ae426082"
)
RGBA = (
    "89504e470d0a1a0a0000000d4948445200000002000000030806000000b9eade810000000b4944415478"
    "9c6360c00900001b0001ca3c4a0d0000000049454e44ae426082"
)


@pytest.mark.parametrize(
    ("algorithm", "file", "mode", "name"),
    [
        (
            *("sha256", RGB, "RGB"),
            "5bd3bccfef4740b3d5e01ceb0d2c1ae7dfc5c4e50b3548da67cfc234b1986d06",
        ),
        (
            *("sha256", RGBA, "RGBA"),
            "d672eaef53a255d2f5bafd2b4e38776f348cf441c4fb604b3c484d633409e58b",
        ),
        (
            *("blake3", RGB, "RGB"),
            "fd36b56447940820f6b1bf02129dbb39500e7c9e892838b1d5af0fc46b09249d",
        ),
        (
            *("blake3", RGBA, "RGBA"),
            "3b6b04fa6b10894ae5501dd694bb1e5b44418946630b8a4e7cd968644007aa31",
        ),
        (
            *("sha512", RGB, "RGB"),
            "44544bce637f5b8b2558577242d71be200be09048cecc5299e0da8ef0bb9d6f6"
            "731d6c3f9dd9e1a75a6ad21dd470f20a1f660022ea692414ada1786e758cd495",
        ),
    ],
)
def test_name_of_an_image_is_that_of_vllm(
    algorithm: Algorithm, file: str, mode: str, name: str
) -> None:
    assert image_name(algorithm, "org/model", bytes.fromhex(file), mode=mode) == name


def test_names_depend_on_model_modality_and_data() -> None:
    names = {
        data_name("blake3", model, modality, data=data)
        for model in ("a", "b")
        for modality in ("image", "video")
        for data in (b"x", b"y" * 3_000_000)
    }
    assert len(names) == 8
    assert {len(name) for name in names} == {64}
