"""Log probabilities in the shape of items and events."""

from app.core.api.logprobs import TokenNames, token_bytes, token_name
from app.core.engine.outputs import TokenLogprob
from app.core.protocol.coercion import JsonObject


class ItemNames(TokenNames):
    """Writes the entries of items and events; the field `bytes` encodes the name of the token."""

    def item_entry(self, entry: TokenLogprob) -> JsonObject:
        """Returns an entry of an item of Responses, whose keys have another order."""
        name = token_name(entry.token_id, entry.token, self._as_ids)
        alternatives = [
            {"token": text, "bytes": token_bytes(text), "logprob": logprob}
            for _, text, logprob in self.alternatives(entry)
        ]
        return {
            "token": name,
            "bytes": token_bytes(name),
            "logprob": entry.logprob,
            "top_logprobs": alternatives,
        }

    def event_entry(self, entry: TokenLogprob) -> JsonObject:
        """Returns an entry of an event of Responses."""
        name = token_name(entry.token_id, entry.token, self._as_ids)
        alternatives = [
            {"token": text, "logprob": logprob} for _, text, logprob in self.alternatives(entry)
        ]
        return {"token": name, "logprob": entry.logprob, "top_logprobs": alternatives}
