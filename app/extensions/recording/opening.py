"""Opens the recording of the settings, and the upstream of its targets."""

from pathlib import Path

from app.extensions.recording.exchange import RecordingError
from app.extensions.recording.library import Recording
from app.extensions.recording.recorder import Upstream
from app.extensions.recording.settings import ReplaySettings
from app.extensions.recording.targets import targets_by_model
from app.extensions.recording.writer import RecordingFile
from config import ConfigError, Settings


def open_replay(settings: Settings, warns: bool = True) -> tuple[Recording, Upstream | None]:
    """Opens the recording of the settings, and the upstream of their targets.

    The upstream adds the answers of the targets to the file of the recording. `warns` logs a line
    for each part of the file that cannot be read.

    Raises:
        ConfigError: the file cannot be read or written, or a target is wrong.
    """
    replay = settings.section(ReplaySettings)
    upstream = None
    try:
        if replay.target:
            targets = targets_by_model(replay.target)
            urls = ", ".join(target.url for target in targets.values())
            file = RecordingFile(Path(replay.replay), urls, adds=True)
            upstream = Upstream(targets, file, replay.target_timeout)
        recording = Recording(
            replay.replay,
            finds_similar=replay.replay_miss == "nearest",
            grows=upstream is not None,
            warns=warns,
            by_turn=replay.replay_by == "turn",
        )
    except RecordingError as error:
        raise ConfigError(f"setting replay: {error}") from None
    return recording, upstream
