"""Facts of vLLM: options, releases, models, devices, and command lines. Imports no `app`."""
