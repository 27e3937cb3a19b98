"""Understudy's own configuration, with another program in place of the one that computes."""

import runpy
from pathlib import Path

from app.extensions.llm import engine_process
from config import declaration

engine_process.MODULE = "tests.extensions.llm.remote.engine"
declaration.PACKAGES["engine"] = ()
globals().update(runpy.run_path(str(Path(__file__).parents[4] / "gunicorn.conf.py")))
