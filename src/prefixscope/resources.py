"""Where the files that travel with the package lie: inside an installed wheel, or at the root of a source checkout."""

from __future__ import annotations

from pathlib import Path

from prefixscope.errors import PrefixscopeError

_PACKAGE = Path(__file__).resolve().parent


def data_path(*parts: str) -> Path:
    """The path of a shipped data file or folder: ``data_path("models", "gemma4-tiny")``."""
    return _shipped(_PACKAGE / "data", "data", *parts)


def notebooks_path(*parts: str) -> Path:
    """The folder of the shipped notebooks, or the path of one of them."""
    return _shipped(_PACKAGE / "notebooks_shipped", "notebooks", *parts)


def _shipped(installed: Path, checkout_name: str, *parts: str) -> Path:
    # A wheel holds the files beside the modules; a checkout has src/prefixscope/ two levels below its root.
    folder = installed if installed.is_dir() else _PACKAGE.parents[1] / checkout_name
    path = folder.joinpath(*parts)
    if not path.exists():
        raise PrefixscopeError(
            f"{'/'.join((checkout_name, *parts))} is not part of this installation: looked for {path}",
            cause="the package was copied without its data files",
            remedy="reinstall it: pip install --force-reinstall prefixscope",
        )
    return path
