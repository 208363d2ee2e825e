"""The embedded model that speaks: trained weights that travel with the package, the generated model where they don't.

``data/models/gemma4-small`` holds what ``training/train.py`` wrote: a folder each for target, drafter and adapter, and
``training.json`` with every file's digest. It is served from where it lies.
"""

from __future__ import annotations

import json
from pathlib import Path

from prefixscope.errors import PrefixscopeError
from prefixscope.model import Model, digests, ensure_model
from prefixscope.resources import data_path

NAME = "gemma4-small"
RECORD = "training.json"


def embedded_model(folder: Path) -> Model:
    """The model that an embedded engine serves: the trained one, or else the generated one inside ``folder``.

    Raises
    ------
    EngineError
        where the trained one is missing or damaged and the other can't be written.
    """
    return trained_model() or ensure_model(folder)


def trained_model() -> Model | None:
    """The trained model where the package lies, its digests checked; None where a file is missing or another one."""
    try:
        home = data_path("models", NAME)
        expected = json.loads((home / RECORD).read_text(encoding="utf-8"))["sha256"]
        found = digests(home)
    except (PrefixscopeError, OSError, ValueError, KeyError):
        return None
    if any(found.get(name) != value for name, value in expected.items()):
        return None
    return Model(home / "target", home / "drafter", home / "lora", NAME, f"{NAME}-lora")
