"""The WSGI application where Understudy is installed: `gunicorn vllm_understudy.wsgi:app`."""

import sys

from vllm_understudy.tree import TREE

# First, because the working folder may have an `app` or a `config` of its own.
sys.path.insert(0, str(TREE))

from app import create_app

app = create_app()
