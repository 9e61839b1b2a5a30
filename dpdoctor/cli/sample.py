"""`dpdoctor sample`: training scripts to try dpdoctor on, wherever it was installed from."""

from __future__ import annotations

import ast
from pathlib import Path

import click

from dpdoctor.cli import Verb
from dpdoctor.errors import OutputError, UsageError

_PACKAGE = Path(__file__).parents[1]
# What the samples share; it is no sample.
_SHARED = "faults"


@click.command(cls=Verb, short_help="Write a sample training script to try.")
@click.argument("name", required=False)
@click.option(
    "--out", type=click.Path(path_type=Path), default=".", metavar="DIR", help="Where to write it. Default: here."
)
def sample(name: str | None, out: Path) -> None:
    """List the samples or, with NAME, write NAME.py to the current directory."""
    known = {path.stem: path for path in sorted(_folder().glob("*.py")) if path.stem != _SHARED}
    if name is None:
        for key, path in known.items():
            click.echo(f"{key:<{max(map(len, known))}}  {_summary(path)}")
        return
    if name not in known:
        raise UsageError(f"{name!r} is no sample; known: {', '.join(known)}")
    for path in (known[name], *_imported(known[name])):
        _write(path, out / path.name)
    click.echo(f"Sample: {out / known[name].name}\nTry: dpdoctor profile {out / known[name].name}")


def _folder() -> Path:
    """Return where the samples are: in the package where it was installed, beside it in a checkout."""
    installed = _PACKAGE / "samples"
    return installed if installed.is_dir() else _PACKAGE.parent / "samples"


def _summary(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0].rstrip(".")


def _imported(path: Path) -> list[Path]:
    """Return the files beside a sample that it imports."""
    imports = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Import)]
    beside = [path.with_name(f"{alias.name}.py") for node in imports for alias in node.names]
    return [file for file in beside if file.exists()]


def _write(source: Path, target: Path) -> None:
    content = source.read_bytes()
    if target.exists() and target.read_bytes() != content:
        raise OutputError(f"{target} exists and is another file; give --out DIR")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    except OSError as error:
        raise OutputError(f"cannot write {target}: {error.strerror}") from error


COMMAND = sample
