"""The server: gunicorn worker and arbiter, HTTP, Flask application, middleware."""
