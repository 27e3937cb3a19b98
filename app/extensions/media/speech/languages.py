"""Languages of speech models, by their codes of ISO 639-1."""

from __future__ import annotations

from app.core.server.http.errors import bad_request

MAX_CODE_CHARS = 1_000
"""Characters of a language that an error quotes."""
NAMES = {
    "af": "Afrikaans",
    "ar": "Arabic",
    "hy": "Armenian",
    "az": "Azerbaijani",
    "be": "Belarusian",
    "bs": "Bosnian",
    "bg": "Bulgarian",
    "ca": "Catalan",
    "zh": "Chinese",
    "hr": "Croatian",
    "cs": "Czech",
    "da": "Danish",
    "nl": "Dutch",
    "en": "English",
    "et": "Estonian",
    "fi": "Finnish",
    "fr": "French",
    "gl": "Galician",
    "de": "German",
    "el": "Greek",
    "he": "Hebrew",
    "hi": "Hindi",
    "hu": "Hungarian",
    "is": "Icelandic",
    "id": "Indonesian",
    "it": "Italian",
    "ja": "Japanese",
    "kn": "Kannada",
    "kk": "Kazakh",
    "ko": "Korean",
    "lv": "Latvian",
    "lt": "Lithuanian",
    "mk": "Macedonian",
    "ms": "Malay",
    "mr": "Marathi",
    "mi": "Maori",
    "ne": "Nepali",
    "no": "Norwegian",
    "fa": "Persian",
    "pl": "Polish",
    "pt": "Portuguese",
    "ro": "Romanian",
    "ru": "Russian",
    "sr": "Serbian",
    "sk": "Slovak",
    "sl": "Slovenian",
    "es": "Spanish",
    "sw": "Swahili",
    "sv": "Swedish",
    "tl": "Tagalog",
    "ta": "Tamil",
    "th": "Thai",
    "tr": "Turkish",
    "uk": "Ukrainian",
    "ur": "Urdu",
    "vi": "Vietnamese",
    "cy": "Welsh",
}
"""Names of the languages that vLLM supports, in its order."""
OTHER_CODES = frozenset(
    (
        *("am", "as", "ba", "bn", "bo", "br", "eu", "fo", "gu", "haw", "ht"),
        *("jw", "ka", "km", "la", "lb", "ln", "lo", "mg", "ml", "mn", "mt"),
        *("my", "nn", "oc", "pa", "ps", "sa", "sd", "si", "sn", "so", "sq"),
        *("su", "te", "tg", "tk", "tt", "uz", "yi", "yo", "yue"),
    )
)
"""Codes that vLLM accepts with a warning in its log."""
WITHOUT_SPACES = frozenset(("ja", "zh"))
"""Languages that have no space between words."""


def check_language(code: str | None) -> None:
    """Raises `ApiError` 400 for a code that is no language."""
    if code is None or code in NAMES or code in OTHER_CODES:
        return
    raise bad_request(
        f"Unsupported language: {code[:MAX_CODE_CHARS]!r}.  Must be one of {[*NAMES]}."
    )
