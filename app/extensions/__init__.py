"""Optional features, one package each, behind the contract of `app.core.extensions`."""
