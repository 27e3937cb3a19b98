"""Reads the files of clusters: Kubernetes, Compose, values of charts. Start in `deployments.py`."""
