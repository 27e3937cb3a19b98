"""The command that writes example files into a project."""

from app.core.extensions import Extension


class ProjectFiles(Extension):
    """Adds the command `init`."""

    name = "project_files"
