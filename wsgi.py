"""The WSGI application: `gunicorn wsgi:app`."""

from app import create_app

app = create_app()
application = app  # the name that uWSGI and mod_wsgi look for
