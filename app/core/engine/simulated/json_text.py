"""JSON texts in replies."""

import json

USUAL = (", ", ": ")
COMPACT = (",", ":")
"""Separators between items, and between name and value."""
write_usual_json = json.JSONEncoder(ensure_ascii=False, separators=USUAL).encode
write_compact_json = json.JSONEncoder(ensure_ascii=False, separators=COMPACT).encode
