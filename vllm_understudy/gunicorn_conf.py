"""Gunicorn's settings for an installed Understudy.

`gunicorn -c python:vllm_understudy.gunicorn_conf vllm_understudy.wsgi:app`
"""

import runpy
import sys

from vllm_understudy.tree import TREE

# First, because the working folder may have a folder `app` or `config`, too.
sys.path.insert(0, str(TREE))

globals().update(runpy.run_path(str(TREE / "gunicorn.conf.py")))
