"""What older releases of vLLM answered on the routes of the core.

The code of the core is the newest vLLM. The modules in `releases` say how chats, completions and
tokenization differed before each release; other extensions have such folders for their own routes.
"""

from app.core.extensions import Extension


class PastReleases(Extension):
    """Has no parts of its own: `app.core.versions.chain` reads its releases."""

    name = "past_releases"
