"""Notes the moments of requests, one after another: what `Pod` does, in its simplest form."""

from __future__ import annotations

from app.engine.batch import Batch
from app.fidelity.client import Client, OfflineRequest


class MomentRecorder:
    def __init__(self, client: Client) -> None:
        self._client = client

    def step_made(self, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        pass

    def step_over(self, batch: Batch[OfflineRequest], first_s: float, gap_s: float) -> None:
        for place, request in enumerate([*batch.decodes, *batch.prefilled]):
            if request.first_s < 0:
                request.first_s = first_s + place * gap_s
            if request in batch.ends:
                request.last_s = first_s + place * gap_s
                self._client.left(request.last_s)
