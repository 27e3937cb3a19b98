"""HTTP: gunicorn's worker, Flask, middleware, faults, scripts, recordings, and vLLM's API."""
