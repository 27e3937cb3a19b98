"""The WSGI application of an installed Understudy: `gunicorn vllm_understudy.wsgi:app`."""

import sys

from vllm_understudy.tree import TREE

# First, because the working folder may have a folder `app` or `config`, too.
sys.path.insert(0, str(TREE))

from app import create_app

app = create_app()
