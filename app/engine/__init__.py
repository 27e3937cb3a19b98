"""The engine: requests in, outputs out; who waits, who runs, and when each token is due."""
