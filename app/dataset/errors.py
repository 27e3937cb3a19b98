"""The one error of this package."""


class DatasetError(Exception):
    """A dataset cannot be used, downloaded or built; its text is one line for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))
