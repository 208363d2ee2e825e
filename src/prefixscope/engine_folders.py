"""Where embedded engines are kept, and which of the folders count.

```
CACHE/engines/base-XXXXXXXX/      a virtual environment: PyTorch and vLLM's other requirements, shared by versions
      engines/vllm-XXXXXXXX/      one vLLM version: site/ (the package), env/ (a virtual environment that sees site/
                                  and the base's packages, and holds nothing itself), cache/ (what vLLM writes)
      models/gemma4-tiny-XXXX/    the generated model, where the trained one that travels with the package is missing
```
A folder counts once its ``complete.json`` is there, which is written last: an interrupted install is swept away and
redone, never used.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prefixscope.errors import Unwritable
from prefixscope.installer import folder_bytes

MARKER = "complete.json"
Progress = Callable[[str], None]


def cache_folder() -> Path:
    """Where engines and models are kept: ``$PREFIXSCOPE_CACHE``, else ``prefixscope`` in the user's cache folder."""
    if chosen := os.environ.get("PREFIXSCOPE_CACHE"):
        return Path(chosen).expanduser().absolute()
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser().absolute() / "prefixscope"


def home() -> Path:
    return cache_folder() / "engines"


def folders(kind: str) -> list[Path]:
    return sorted(path for path in home().glob(f"{kind}-*") if path.is_dir())


def facts_of(path: Path) -> dict[str, Any]:
    """What the completion marker says; empty where the folder is unfinished."""
    try:
        facts: dict[str, Any] = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts


def finish(path: Path, facts: dict[str, Any]) -> None:
    """Writes the completion marker: from here on the folder counts."""
    text = json.dumps({**facts, "size_bytes": folder_bytes(path)}, indent=1)
    scratch = path / f"{MARKER}.new"
    with scratch.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path / MARKER)


def can_serve(facts: dict[str, Any]) -> bool:
    return bool(facts.get("can_serve", True))  # markers of earlier installs, all CPU builds, don't say


def base_of(facts: dict[str, Any]) -> Path:
    return home() / str(facts["base"])


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def alive(base: Path) -> bool:
    # `python` is a link to the interpreter the environment was made with, which an upgrade may have taken away.
    return bool(facts_of(base)) and python_of(base).exists()


def versions() -> list[tuple[Path, dict[str, Any]]]:
    complete = [(path, facts) for path in folders("vllm") if (facts := facts_of(path))]
    found = [(path, facts) for path, facts in complete if python_of(path / "env").exists() and alive(base_of(facts))]
    return sorted(found, key=lambda item: [int(part) for part in re.findall(r"\d+", item[1]["version"])])


def sweep() -> None:
    """Deletes what interrupted installs left behind. Only under the lock: a running install looks unfinished too."""
    usable = {path for path, _ in versions()} | {path for path in folders("base") if alive(path)}
    for path in [*folders("vllm"), *folders("base"), *folders("scratch")]:
        if path not in usable:
            shutil.rmtree(path, ignore_errors=True)


def delete(path: Path) -> int:
    size = folder_bytes(path)
    (path / MARKER).unlink(missing_ok=True)  # first, so that a half-deleted folder never counts
    shutil.rmtree(path, ignore_errors=True)
    return size


@contextmanager
def lock(progress: Progress) -> Iterator[None]:
    """One install at a time. The kernel drops the lock with its process, so a killed one leaves no obstacle."""
    try:
        home().mkdir(parents=True, exist_ok=True)
        file = (home() / ".lock").open("w")
    except OSError as error:
        raise Unwritable(
            f"the cache folder {home()} can't be written to: {error.strerror}",
            remedy="set PREFIXSCOPE_CACHE to a folder that this user may write to",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting: another process is installing or removing an engine")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
