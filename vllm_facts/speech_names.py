"""Speech models by their names: families whose fine-tuned copies have names that nobody can list.

A name with the word of a family has the family's architecture. Rows of the table of models take
precedence.
"""

import re
from typing import Final, NamedTuple


class SpeechFamily(NamedTuple):
    """Models that transcribe, and have one word in their names."""

    words: re.Pattern[str]
    architecture: str
    max_model_len: int = 0
    """Tokens of all models of the family; 0 if they differ."""


def _family(words: str, architecture: str, max_model_len: int = 0) -> SpeechFamily:
    pattern = re.compile(rf"(?:{words})(?![a-z])", re.ASCII | re.IGNORECASE)
    return SpeechFamily(pattern, architecture, max_model_len)


WHISPER_LENGTH: Final = 448
"""Tokens that the decoder of each Whisper can write, with the marks of its prompt."""
FAMILIES: Final = (
    _family("whisper", "WhisperForConditionalGeneration", WHISPER_LENGTH),
    _family(r"voxtral\b.*-realtime", "VoxtralRealtimeGeneration"),
    _family("voxtral", "VoxtralForConditionalGeneration"),
    _family("qwen3-asr", "Qwen3ASRForConditionalGeneration", 65_536),
    _family("qwen3-omni", "Qwen3OmniMoeForConditionalGeneration"),
    _family(r"granite-speech\b.*-plus", "GraniteSpeechPlusForConditionalGeneration"),
    _family(r"granite\b.*-speech", "GraniteSpeechForConditionalGeneration"),
    _family("granite-speech", "GraniteSpeechForConditionalGeneration"),
    _family("glm-asr", "GlmAsrForConditionalGeneration"),
    _family("fireredasr2", "FireRedASR2ForConditionalGeneration"),
    _family("fun-?asr", "FunASRForConditionalGeneration"),
    _family("cohere-(?:asr|transcribe)", "CohereAsrForConditionalGeneration"),
    _family("kimi-audio", "MoonshotKimiaForCausalLM"),
    _family("gemma-?3n", "Gemma3nForConditionalGeneration"),
    _family("moss-transcribe(?:-diarize)?", "MossTranscribeDiarizeForConditionalGeneration"),
)
"""Families of `SupportsTranscription` in vLLM, the ones with longer words first."""


def speech_family(name: str) -> SpeechFamily | None:
    """Returns the family of a speech model by its name; None for another name."""
    folded = name.replace("_", "-")
    for family in FAMILIES:
        if family.words.search(folded):
            return family
    return None
