"""The old name of `scale_out`, for imports of plugins until the release after 0.1."""

import sys

from app.extensions import scale_out
from app.extensions.scale_out import settings

sys.modules[__name__] = scale_out
sys.modules[f"{__name__}.settings"] = settings
