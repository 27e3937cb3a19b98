"""Settings of scripted replies."""

from typing import Annotated, Literal

from config.declaration import About, Section
from config.model_files import ModelFiles, model_and_path


class ScriptSettings(Section, frozen=True, kw_only=True):
    """Replies from the rules of scripts."""

    script: Annotated[ModelFiles, About(simulated=True, path=True)] = ()
    """YAML files with rules for replies, each as path, or as model=path for the requests of one
    model. A changed file is reloaded."""

    unmatched: Annotated[Literal["error", "pass"] | None, About(live=True, simulated=True)] = None
    """Reply to a request that no rule answers. error: an error that names the nearest rule. pass:
    the reply of the mode. If empty: error once a test has set replies of this kind, otherwise
    pass."""

    @property
    def files(self) -> tuple[tuple[str, str], ...]:
        """Model (`ALL_MODELS` for all models) and path of each item, in order."""
        return tuple(map(model_and_path, self.script))
