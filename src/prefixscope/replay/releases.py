"""Which releases a prediction asks: those whose scheduler is known and installed here."""

from __future__ import annotations

from collections.abc import Sequence

from prefixscope import engine as engines
from prefixscope.errors import EngineError, ReplayError
from prefixscope.inside import versions

RELEASES = ("0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""What is asked where nobody names a release."""


def age(name: str) -> tuple[tuple[int, int], str]:
    """What releases are sorted by, oldest first, in every table."""
    return versions.parse(name), name


def choose_releases(wanted: Sequence[str] | None, *, own: str = "") -> tuple[list[str], list[str]]:
    """The installed ones of these releases, oldest first, and those that are not installed.

    ``own`` is the running server's: where none is installed and nobody names any, it is the one to install.

    Raises
    ------
    ReplayError
        for a release whose scheduler is not known, by its name; and where none is installed.
    """
    names = list(dict.fromkeys(wanted if wanted is not None else RELEASES))
    for name in names:
        try:
            engines.check_version(name)
        except EngineError as error:
            raise ReplayError(f"--vllm: {error.what}", cause=error.cause, remedy=error.remedy) from None
        if versions.parse(name) not in versions.KNOWN:
            raise ReplayError(
                f"vLLM {name!r} can't be replayed",
                cause="its scheduler was not read and run with this prefixscope",
                remedy="choose a release from 0.28.0 to 0.33.0 with --vllm",
            )
    have = {one.version for one in engines.installed()}
    names.sort(key=age)
    found, missing = [name for name in names if name in have], [name for name in names if name not in have]
    if not found:
        raise ReplayError(
            f"none of these vLLM releases is installed here: {', '.join(missing)}",
            cause="a prediction asks a release's own scheduler",
            remedy=install_line([own if own in RELEASES else engines.DEFAULT_VERSION] if wanted is None else missing),
        )
    return found, missing


def install_line(releases: Sequence[str]) -> str:
    """The command that installs them."""
    return " && ".join(f"prefixscope engine install {name}" for name in releases)
