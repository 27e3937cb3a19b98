"""The old name of the extension, `disaggregation`, for one release."""

from importlib import import_module

from app.core.built_in import present_extensions
from app.extensions import scale_out
from app.extensions.scale_out.settings import ScaleOutSettings


def test_old_name_imports_the_same_package_and_settings() -> None:
    assert import_module("app.extensions.disaggregation") is scale_out, "the package"
    settings = import_module("app.extensions.disaggregation.settings")
    assert settings.ScaleOutSettings is ScaleOutSettings, "its section of settings"


def test_extension_is_present_once_under_its_new_name() -> None:
    names = [extension.name for extension in present_extensions()]
    assert names.count("scale_out") == 1, "the new name"
    assert "disaggregation" not in names, "the old name is no second extension"
