"""Tells secrets from other texts: by their names, and in queries by what they look like."""

import re

WORDS = (
    *("key", "keys", "apikey", "apikeys", "token", "secret", "secrets"),
    *("password", "passwords", "passwd", "pwd", "passphrase", "auth", "authorization"),
    *("cookie", "cookies", "credential", "credentials", "signature"),
)
"""Last words of the names of secrets."""
MIN_RUN = 16
"""Letters and digits in a row of a secret; those of names, dates and UUIDs are fewer."""
MIN_CHANGE_SHARE = 0.25
"""Share of its characters that are of another kind than the one before.

It is 0.47 on average for random hexadecimal digits, 0.6 for all letters and digits, and less for
words and dates.
"""
_SECRET = re.compile(rf"(?:.*[^a-z])?(?:{'|'.join(WORDS)})", re.S)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SIGNED = re.compile(r"(?:sig|jwt|x-(?:amz|goog|oss|cos|ms)-.*)", re.S)
"""Parameters of signed URLs."""
_PREFIXED = re.compile(
    r"(?:sk-|pk-|rk-|sk_|pk_|rk_|hf_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|AIza|ya29\.|eyJ"
    r"|nvapi-|gsk_|npm_|pypi-|dop_v1_|SG\.)[\w.-]{12,}"
)
"""Keys of known services."""
_RUN = re.compile(rf"[A-Za-z0-9]{{{MIN_RUN},}}+")
_KIND = re.compile(r"[A-Z]++|[a-z]++|[0-9]++")


def is_secret(name: str) -> bool:
    """Returns True if the last word of a name is one of `WORDS`.

    `X-Api-Key` and `hfToken` are names of secrets, `max_tokens` is not.
    """
    return _SECRET.fullmatch(_CAMEL.sub("-", name).lower()) is not None


def is_secret_parameter(name: str, value: str) -> bool:
    """Returns True if a decoded parameter of a URL has the name or the value of a secret."""
    is_signed = _SIGNED.fullmatch(name.lower()) is not None
    return is_signed or is_secret(name) or looks_like_secret(value)


def looks_like_secret(value: str) -> bool:
    """Returns True for a key of a known service, and for a text that looks random."""
    return _PREFIXED.search(value) is not None or any(map(_is_random, _RUN.findall(value)))


def _is_random(run: str) -> bool:
    """Returns True if letters and digits in a row change as often as in random texts."""
    has_digits = any(map(str.isdecimal, run))
    return has_digits and len(_KIND.findall(run)) - 1 >= MIN_CHANGE_SHARE * len(run)
