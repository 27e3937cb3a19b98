"""Odd requests are made from the OpenAPI document with the schemas of forms."""

from tests.present import is_present

collect_ignore = [] if is_present("forms") and is_present("openapi") else ["test_fuzz.py"]
