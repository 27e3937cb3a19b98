"""Speech models by their names: fine-tuned copies are too many for the table of models.

A name with the words of a family has the family's architecture. Rows of the table of models take
precedence. Start reading at `speech_family`.
"""

import re
from typing import Final, NamedTuple

WHISPER_LENGTH: Final = 448
"""Tokens that the decoder of each Whisper can write, with the marks of its prompt."""
WORDS: Final = {
    "whisper": "WhisperForConditionalGeneration",
    r"voxtral\b.*-realtime": "VoxtralRealtimeGeneration",
    "voxtral": "VoxtralForConditionalGeneration",
    "qwen3-asr": "Qwen3ASRForConditionalGeneration",
    "qwen3-omni": "Qwen3OmniMoeForConditionalGeneration",
    r"granite\b.*-speech\b.*-plus": "GraniteSpeechPlusForConditionalGeneration",
    r"granite\b.*-speech": "GraniteSpeechForConditionalGeneration",
    "glm-asr": "GlmAsrForConditionalGeneration",
    "fireredasr2": "FireRedASR2ForConditionalGeneration",
    "fun-?asr": "FunASRForConditionalGeneration",
    "cohere-(?:asr|transcribe)": "CohereAsrForConditionalGeneration",
    "kimi-audio": "MoonshotKimiaForCausalLM",
    "gemma-?3n": "Gemma3nForConditionalGeneration",
    "moss-transcribe": "MossTranscribeDiarizeForConditionalGeneration",
}
"""Words -> architecture with `SupportsTranscription` in vLLM; the first words that fit decide."""
LENGTHS: Final = {
    "WhisperForConditionalGeneration": WHISPER_LENGTH,
    "Qwen3ASRForConditionalGeneration": 65_536,
}
"""Architecture -> maximum tokens of a request, where all models of the family have the same."""


class SpeechFamily(NamedTuple):
    """Facts of the speech models with certain words in their names."""

    architecture: str
    max_model_len: int
    """Tokens; 0 if the models differ."""


def speech_family(name: str) -> SpeechFamily | None:
    """Returns the family of a speech model by its name; None for another name."""
    folded = name.replace("_", "-")
    for words, architecture in WORDS.items():
        if re.search(rf"(?:{words})(?![a-z])", folded, re.ASCII | re.IGNORECASE):
            return SpeechFamily(architecture, LENGTHS.get(architecture, 0))
    return None
