"""Whole numbers in headers, such as Content-Length (RFC 9110, section 8.6)."""

MAX_DIGITS = 18


def header_number(text: str) -> int | None:
    """Returns the number that a header consists of; None for other text, and above 18 digits."""
    if text.isdecimal() and len(text) <= MAX_DIGITS:
        return int(text)
    return None
