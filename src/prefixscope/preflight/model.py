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
        raise _not_served(client.url, models, wanted)
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
    if wanted:
        if wanted not in [model.name for model in models]:
            raise _not_served(url, models, wanted)
        return wanted
    bases = [model for model in models if not model.parent]
    # vLLM lists every alias of --served-model-name with the same root; adapters may be all that a router lists.
    several = {model.root or model.name for model in bases} if bases else {model.name for model in models}
    if len(several) > 1:
        what = "models" if bases else "adapters and no base model"
        raise TargetError(
            f"{url} serves {len(several)} {what}, and none was named",
            cause="a verdict is about one of them",
            remedy=f"choose one with --model: {', '.join(model.name for model in models)}",
        )
    if not models:
        raise TargetError(
            f"{url} serves no model", cause="the list at /v1/models is empty", remedy="read the server's log"
        )
    return (bases or list(models))[0].name


def _not_served(url: str, models: Sequence[ServedModel], wanted: str) -> Rejected:
    return Rejected(
        f"{url} serves no model named {wanted!r}",
        status=404,
        cause="the name must be one of the served ones, to the letter",
        remedy=f"choose one with --model: {', '.join(model.name for model in models) or '(none listed)'}",
        lacks="model",
    )


def context(models: Sequence[ServedModel], name: str = "") -> int | None:
    """The context of a served model in tokens: its own, or that of the base an adapter belongs to.

    Where neither is told, or no name is given, the first that is; None where none is.
    """
    by_name = {model.name: model for model in models}
    own = by_name.get(name)
    base = by_name.get(own.parent or "") if own else None
    told = [model.max_model_len for model in (own, base, *([] if base else models)) if model and model.max_model_len]
    return told[0] if told else None
