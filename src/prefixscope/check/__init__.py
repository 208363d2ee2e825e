"""One question to a running server: is what is sent twice reused? A handful of requests, one sentence, a verdict."""

from __future__ import annotations

from prefixscope import preflight
from prefixscope.check.asker import Say
from prefixscope.check.budget import MAX_SENDS, MAX_TOKENS
from prefixscope.check.evidence import Evidence, Sent
from prefixscope.check.judge import judge
from prefixscope.check.outcome import CODES, Outcome
from prefixscope.check.probe import MIN_TOKENS, TOKENS, Prober
from prefixscope.client import Client

__all__ = ["CODES", "MAX_SENDS", "MAX_TOKENS", "MIN_TOKENS", "TOKENS", "Evidence", "Outcome", "Sent", "check", "judge"]


def check(
    client: Client,
    *,
    model: str = "",
    tokens: int = TOKENS,
    api: str = "",
    min_reuse: float | None = None,
    say: Say = lambda line: None,
) -> Outcome:
    """Send a prompt, the same again and its next turn, and judge what was reused.

    Parameters
    ----------
    model : served name, of an adapter too; empty where only one model is served.
    tokens : prompt length, about; the server's own count is in the result.
    api : ``chat``, ``completions`` or ``messages`` (``completion.PATHS``); empty takes the first that is served.
    min_reuse : share of the prompt that the second send and the second turn must take from the cache, 0 to 1. Without
        one they may miss a twentieth of it, three blocks or 192 tokens, whichever is most.
    say : is told of each further probe, and of its price, before it is sent.

    Raises
    ------
    TargetError
        where the served models can't be listed, or several are served and none is named. A request that fails later is
        an outcome, ``refused``, with all that was seen before.
    """
    seen = preflight.look(client)
    name = preflight.one_base(client.url, seen.models, model)
    return judge(Prober(client, seen, name, tokens=tokens, api=api, say=say).evidence(min_reuse=min_reuse))
