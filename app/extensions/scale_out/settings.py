"""Settings of the routes for disaggregated serving."""

from config.declaration import Section


class ScaleOutSettings(Section, frozen=True, kw_only=True):
    """Routes for disaggregated serving."""

    enable_scale_out: bool = True
    """Serve the render, derender, inference/v1/generate, and abort_requests routes. If this setting
    is false, these routes return status 403. With the serve command, these routes are disabled by
    default."""
    tokens_only: bool = False
    """Serve the enable-scale-out routes as an engine without a tokenizer does:
    inference/v1/generate rejects stop strings and the text output_mode."""
