"""Which of the served names is asked."""

from __future__ import annotations

from collections.abc import Sequence

from prefixscope.client import Client, ServedModel
from prefixscope.errors import Rejected, TargetError


def choose_model(client: Client, wanted: str = "") -> tuple[str, str | None]:
    """The base model's served name and the first LoRA name (None where there is none).

    Raises
    ------
    Rejected
        where ``wanted`` is not served, listing the names that are.
    TargetError
        where nothing is served.
    """
    models = client.models()
    if not models:
        raise TargetError(f"{client.url} serves no model", remedy="read the server's log")
    names = [model.name for model in models]
    if wanted and wanted not in names:
        raise Rejected(
            f"{client.url} serves no model named {wanted!r}",
            status=404,
            cause="the name must be one of the served ones, to the letter",
            remedy=f"use one of: {', '.join(names)}",
        )
    base = wanted or next((model.name for model in models if not model.parent), names[0])
    return base, next((model.name for model in models if model.parent and model.name != base), None)


def one_base(url: str, models: Sequence[ServedModel], wanted: str = "") -> str:
    """The name to ask where exactly one model is meant: ``wanted``, or the only base model served.

    Raises
    ------
    Rejected
        where ``wanted`` is not served.
    TargetError
        where nothing, or several different models are served and none is named.
    """
    names = [model.name for model in models]
    if wanted:
        if wanted not in names:
            raise Rejected(
                f"{url} serves no model named {wanted!r}",
                status=404,
                cause="the name must be one of the served ones, to the letter",
                remedy=f"use one of: {', '.join(names) or '(none listed)'}",
            )
        return wanted
    bases = [model for model in models if not model.parent]
    # vLLM lists every alias of --served-model-name with the same root.
    roots = {model.root or model.name for model in bases}
    if len(roots) > 1:
        raise TargetError(
            f"{url} serves {len(roots)} models, and none was named",
            remedy=f"choose one with --model: {', '.join(names)}",
        )
    if not models:
        raise TargetError(f"{url} serves no model", remedy="read the server's log")
    return (bases or list(models))[0].name
