"""The Flask application: blueprints around the routes."""
