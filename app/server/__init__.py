"""The server process: gunicorn with a worker for every rank, ports, certificates, reload."""
