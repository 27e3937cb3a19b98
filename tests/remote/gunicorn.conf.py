"""Understudy's own configuration, with another program in place of the one that computes."""

import runpy
from pathlib import Path

from app import real_engine
from app.server import engine_process

engine_process.MODULE = "tests.remote.engine"
real_engine.NEEDS = ()
globals().update(runpy.run_path(str(Path(__file__).parents[2] / "gunicorn.conf.py")))
