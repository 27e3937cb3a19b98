"""What tests of the step loop share."""

from __future__ import annotations

from app.engine.batch import Batch
from app.fidelity.pod import OfflineRequest


class Moments:
    """Writes the moments of the first and the last token into each request."""

    def step_made(self, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        """Nothing is told of it."""

    def step_over(self, batch: Batch[OfflineRequest], first_s: float, gap_s: float) -> None:
        for place, request in enumerate((*batch.decodes, *batch.prefilled)):
            request.last_s = first_s + place * gap_s
            if request.first_s < 0:
                request.first_s = request.last_s
