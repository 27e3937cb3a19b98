"""Where KV events are published, and scores of pods by cached prefix."""
