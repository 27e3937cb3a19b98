"""The requests of a load tool's export, in the tool's own clock."""

from msgspec import Struct

from config import ConfigError

MAX_MOMENT_S = 1e11
"""Latest moment in seconds: a later one has another unit, such as milliseconds."""


class ToolRequest(Struct, kw_only=True):
    """A request as the tool measured it; moments are seconds of the tool's clock."""

    place: str
    """Place in the export, for messages."""
    send_s: float
    planned_s: float | None = None
    """When the tool wanted to send it."""
    first_s: float | None = None
    """When the tool had the first token; None without streaming."""
    last_s: float | None = None
    """When the tool had the last token."""
    end_s: float | None = None
    """When the tool had the whole answer."""
    input_tokens: int | None = None
    output_tokens: int | None = None
    ids: tuple[str, ...] = ()
    """Ids that the journal may have: of the request, or of its answer."""
    index: int | None = None
    """Number of the request, which is at the end of its id in the journal."""
    text: str | None = None
    """The reply."""
    error: str = ""
    """Why the tool counts the request as failed."""
    is_cut_off: bool = False
    """True if the request failed because the run ended."""

    @property
    def received_s(self) -> float | None:
        """When the tool had the last token, or the whole answer."""
        if self.last_s is not None:
            return self.last_s
        return self.end_s

    def check(self) -> None:
        """Raises ConfigError for moments that are no numbers, or not in order."""
        moments = (self.send_s, self.first_s, self.last_s, self.end_s)
        known_s = [moment_s for moment_s in moments if moment_s is not None]
        for moment_s in (*known_s, self.planned_s or 0.0):
            if not abs(moment_s) <= MAX_MOMENT_S:
                raise ConfigError(f"{self.place}: {moment_s:g} is not a valid time in seconds")
        if known_s != sorted(known_s):
            raise ConfigError(
                f"{self.place}: the times must be in this order: sent, first token, last token, end"
            )


class Export(Struct, kw_only=True):
    """The requests of one run."""

    tool: str
    version: str = ""
    """Empty where the export does not name it."""
    part: str = ""
    """Name of the run within its file; empty for the only run."""
    has_unix_times: bool
    """False for a clock with an arbitrary zero."""
    in_flight: int | None = None
    """Most requests that the tool had in flight; None if unlimited or not in the file."""
    requests: list[ToolRequest] = []
    never_sent: list[ToolRequest] = []
    """Requests that the tool planned and did not send."""

    @property
    def title(self) -> str:
        """Name and version of the tool, in lower case."""
        return f"{self.tool.lower()} {self.version}".rstrip()
