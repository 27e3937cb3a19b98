"""Settings of scripted replies."""

from typing import Annotated, Literal

from config.declaration import SIMULATED, About, Section
from config.model_files import ModelFiles, model_and_path


class ScriptSettings(Section, frozen=True, kw_only=True):
    """Replies from the rules of scripts."""

    script: Annotated[ModelFiles, SIMULATED] = ()
    """YAML files that contain reply rules. Specify each file as PATH, or as MODEL=PATH to use it
    for only one model. A script is reloaded when its file changes."""

    unmatched: Annotated[Literal["error", "pass"] | None, About(live=True, simulated=True)] = None
    """Response to a request that matches no rule: an error that names the closest rule (error) or
    the reply that the mode setting determines (pass). If this setting is empty, pass applies until
    a test sets replies for this kind of request, and error applies after that."""

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Model (`ALL_MODELS` for all models) and path of each item, in order."""
        return tuple(map(model_and_path, self.script))
