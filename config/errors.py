"""The one error of this package."""


class ConfigError(ValueError):
    """A setting is wrong; its text is one line naming the setting, the value, its source and the rule."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
