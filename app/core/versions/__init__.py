"""Differences between releases of vLLM: the code is the newest one, and changes take away.

Start with `app.core.versions.change`, the forms of a change, and `chain`, which combines them.
"""
