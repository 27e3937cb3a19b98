"""Publishers of KV events, and the index of KV blocks."""
