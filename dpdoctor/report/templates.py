"""The package's templates and styles. What a template is given is escaped, unless it is marked as safe."""

from __future__ import annotations

from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


def asset(name: str) -> Markup:
    """Return the text of one of our own files, for a template to take as it is."""
    return Markup(resources.files("dpdoctor.report").joinpath("assets").joinpath(name).read_text(encoding="utf-8"))


def environment() -> Environment:
    """Return an environment that escapes all text and refuses names that it is not given."""
    return Environment(
        loader=PackageLoader("dpdoctor.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
