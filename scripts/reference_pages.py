"""Writes the generated pages of the documentation.

    $ python -m scripts.reference_pages

The pages describe all extensions, so they are complete only in a checkout with all of them.
"""

from collections.abc import Callable
from importlib import import_module

from scripts import (
    llms_txt,
    reference_clients,
    reference_extensions,
    reference_keys,
    reference_surface,
    settings_tables,
)
from scripts.generated_page import Page


def lab_page() -> Page:
    """Returns the page of the options of `simulate` and its neighbors, if the lab is present."""
    page: Page = import_module("scripts.reference_lab").lab_page()
    return page


def coverage_page() -> Page:
    """Returns the page of models and devices of computed profiles, if the lab is present."""
    page: Page = import_module("scripts.reference_coverage").coverage_page()
    return page


PAGES: tuple[Callable[[], Page], ...] = (
    settings_tables.settings_page,
    settings_tables.options_page,
    reference_surface.routes_page,
    reference_surface.admin_page,
    reference_surface.metrics_page,
    reference_keys.hooks_page,
    reference_keys.scripts_page,
    reference_keys.events_page,
    lab_page,
    coverage_page,
    reference_clients.python_page,
    reference_clients.javascript_page,
    reference_extensions.extensions_page,
)


def main() -> None:
    """Writes all generated files, and the generated sections of other pages."""
    for make_page in PAGES:
        page = make_page()
        page.path.write_text(page.markdown(), "utf-8")
    settings_tables.VERSIONS_PAGE.write_text(settings_tables.versions_page(), "utf-8")
    settings_tables.ACCESS_PAGE.write_text(settings_tables.access_page(), "utf-8")
    llms_txt.PATH.write_text(llms_txt.llms_txt(), "utf-8")
    unread_fields = import_module("scripts.unread_fields")
    unread_fields.LIMITS_PAGE.write_text(unread_fields.limits_page(), "utf-8")


if __name__ == "__main__":
    main()
