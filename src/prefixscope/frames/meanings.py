"""What each column of a frame means: unit, meaning, and what a missing value says. A name means one thing everywhere;
the few that don't are told per frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Meaning:
    """One column: what it holds, in which unit (empty: none), and what null means (empty: it is never null)."""

    text: str
    unit: str = ""
    null: str = ""


_OLD = "the row is of a version that did not record it"
_FAILED = "the request failed, or the server does not say"
_STAND = "nothing of the kind was measured"
_NO_ANSWER = "no answer that counts had one"

COLUMNS: Mapping[str, Meaning] = {
    # who and when
    "stage": Meaning("the stage of the run that measured it"),
    "series": Meaning("identity of one prompt sent to one server setting and model, over its sends", null=_OLD),
    "cell": Meaning("identity of setting, prompt and send: what is measured once is not measured again", null=_OLD),
    "attempt": Meaning("which start of the run sent it", null=_OLD),
    "at": Meaning("when it was sent", unit="UTC", null=_OLD),
    "request_id": Meaning(
        "our request id, which the trace holds too", null="nothing was sent, or no one lookup is meant"
    ),
    "status": Meaning("ok, failed or void; for a span of time how it ended", null="it has no outcome of its own"),
    "error": Meaning("what went wrong, shortened", null="nothing did"),
    # settings
    "setting": Meaning("how the server was started"),
    "setting_id": Meaning("identity of that setting"),
    "config": Meaning("the setting, and the model where one server served two"),
    "drafter": Meaning("speculative decoding is on; of a group: it is the drafter's own", null="not ours to know"),
    "lora": Meaning("an adapter is loaded", null="not ours to know"),
    "as_served": Meaning("the server was attached to and keeps its own settings", null=_OLD),
    "dtype": Meaning("the dtype that the server was started with", null="the server's own default"),
    "interval": Meaning("retention interval as people read it: 0, tokens, dense, or default"),
    "interval_order": Meaning("the same to sort by: -1 is default, infinity is dense", unit="tokens"),
    "resolved": Meaning("the interval that the engine worked with", null="it was not traced"),
    "server": Meaning("which server of the run answered", null=_OLD),
    "model": Meaning("served name that was asked", null=_OLD),
    "role": Meaning("which served name was asked: base, or lora for an adapter", null=_OLD),
    "label": Meaning("how the arm's server was started"),
    "arm": Meaning("A or B of a comparison"),
    "side": Meaning("tells the servers of a comparison apart", null=_OLD),
    # prompts and sends
    "prompt": Meaning("name of the prompt; its text is nowhere in the run", null=_OLD),
    "digest": Meaning("of the prompt's messages: equal ones are the same text", null=_OLD),
    "tokens": Meaning("prompt length asked for; of a follow-up, of its first message", unit="tokens", null=_FAILED),
    "send": Meaning("cold, repeat, control, new_ending or follow_up", null=_OLD),
    "index": Meaning("how many times this prompt had been sent, this one included", null=_OLD),
    "send_label": Meaning("what a reader calls the send"),
    "prompt_tokens": Meaning("prompt length as the server counted it", unit="tokens", null=_FAILED),
    "cached_tokens": Meaning("hit length", unit="tokens", null="not reported, or it can't be told; that is not zero"),
    "cached_min": Meaning("shortest hit of the row's sends", unit="tokens", null="not reported"),
    "cached_max": Meaning("longest hit of the row's sends", unit="tokens", null="not reported"),
    "shared_tokens": Meaning(
        "exact common prefix with an earlier send", unit="tokens",
        null="a cold send shares nothing, a repeat all of its prompt; else not known"),
    "short_tokens": Meaning("prompt tokens minus hit length", unit="tokens", null="either is not known"),
    "completion_tokens": Meaning("length of the answer", unit="tokens", null=_FAILED),
    "first_token_ms": Meaning("time to first token", unit="ms", null="not measured"),
    "overlapped": Meaning("another server was starting meanwhile: the time does not compare", null=_OLD),
    "metrics_queries": Meaning(
        "prompt tokens by the server's counters, around the call", unit="tokens", null="not read"
    ),
    "metrics_hits": Meaning("cached tokens by the server's counters, around the call", unit="tokens", null="not read"),
    "metrics_agree": Meaning("counters and answer give the same hit", null="either is missing"),
    "verdict": Meaning(
        "reuses, short, none, cannot hit, not reported or inconclusive",
        null="a first send that hit nothing asks no question",
    ),
    "predicted_tokens": Meaning("hit by the release's own scheduler", unit="tokens", null="it was not asked"),
    "predicted_by": Meaning("the release whose scheduler was asked", null="none was"),
    "predicted_agrees": Meaning("predicted and measured hit are the same", null="either is missing"),
    "predicted_wrong": Meaning("sends in which they are not", unit="count", null="the scheduler was not asked"),
    "rows": Meaning("sends behind the row", unit="count"),
    "failed": Meaning("requests of the row that failed", unit="count"),
    "count": Meaning("requests of the row with a value", unit="count"),
    "median_ms": Meaning("median time to first token", unit="ms"),
    "min_ms": Meaning("shortest", unit="ms"),
    "max_ms": Meaning("longest", unit="ms"),
    # sweep and cost
    "hit_2": Meaning("median hit of second sends", unit="tokens", null="not measured"),
    "hit_3": Meaning("median hit of third sends", unit="tokens", null="not measured"),
    "short_2": Meaning("prompt tokens minus hit, second sends", unit="tokens", null="not measured"),
    "first_2_ms": Meaning("median time to first token of second sends", unit="ms", null="not measured"),
    "predicted_2": Meaning("hit of second sends by the scheduler", unit="tokens", null="it was not asked"),
    "predicted_3": Meaning("hit of third sends by the scheduler", unit="tokens", null="it was not asked"),
    "measured": Meaning("measured on a server; else predicted from a trace"),
    "blocks": Meaning("cache blocks that one send left behind", unit="blocks", null="not traced"),
    "every_block": Meaning("those are all whole blocks of the prompt", null="not traced, or predicted"),
    "bytes": Meaning("the same in bytes", unit="bytes", null="not traced, or a block's size is not known"),
    "gid": Meaning("number of the KV cache group", null="it is of no one group"),
    "group_kind": Meaning("full, sliding, mamba or chunked"),
    "block_size": Meaning("tokens in one block of the group", unit="tokens", null=_OLD),
    # answers
    "document": Meaning("which document was asked about"),
    "pair": Meaning("which two answers were compared"),
    "identical": Meaning(
        "they are equal", null="not compared: the warm answer took nothing from the cache, or one failed"
    ),
    "by": Meaning("token ids, or text where the server gives none", null="not compared"),
    "first_difference": Meaning("place of the first difference", unit="tokens or characters", null="they are equal"),
    "margin": Meaning(
        "log-probability of the best token minus the second there", unit="nats", null="equal, or not known"
    ),
    "class": Meaning("identical, whitespace, markup, words or void", null="not compared"),
    "answer_tokens": Meaning("length of the answer by its ids", unit="tokens", null="the server gave no ids"),
    "distinct_tokens": Meaning("different tokens in it", unit="count", null="the server gave no ids"),
    "compared": Meaning("rows that could be compared", unit="count"),
    "void": Meaning("warm answers that took nothing from the cache", unit="count"),
    "share_low": Meaning("lower end of the share's 95 % interval", unit="share", null="nothing was compared"),
    "share_high": Meaning("upper end of it", unit="share", null="nothing was compared"),
    "sends": Meaning("sends of the configuration", unit="count"),
    "predicted": Meaning("sends that the scheduler was asked about", unit="count"),
    "agree": Meaning("compared rows in which the two are the same", unit="count"),
    "disagree": Meaning("compared rows in which they are not", unit="count"),
    "differ": Meaning("sends in which they are not the same", unit="count"),
    # streamed answers
    "shape": Meaning("kind of prompt: prose, code …"),
    "repeat": Meaning("how often this prompt was asked before, and this time", null=_OLD),
    "item": Meaning("shape and document"),
    "chunks": Meaning("pieces that the stream came in", unit="count", null="the request failed"),
    "seconds": Meaning("wall time", unit="s", null="it has not ended"),
    "step_ms": Meaning("median time between chunks", unit="ms", null="fewer than two chunks"),
    "step_p90_ms": Meaning("its 90th percentile", unit="ms", null="fewer than two chunks"),
    "tokens_per_s": Meaning(
        "tokens by usage after the first chunk, a second", unit="1/s", null="no usage, or one chunk"
    ),
    "chunks_per_s": Meaning("the same with chunks for tokens", unit="1/s", null="fewer than two chunks"),
    "drafts": Meaning("verified steps", unit="count", null="nobody reports them; 0 is nothing drafted"),
    "drafted": Meaning("drafted tokens", unit="tokens", null="nobody reports them"),
    "accepted": Meaning("accepted tokens", unit="tokens", null="nobody reports them"),
    "acceptance": Meaning("accepted over drafted", unit="share", null="nothing was drafted; that is not 0"),
    "tokens_per_step": Meaning("1 + accepted over drafts", unit="tokens", null="nothing was drafted"),
    "source": Meaning("where it was read", null="nobody tells it"),
    "disturbed": Meaning("the counters moved by more than this request", null="the counters were not read"),
    "interleaved": Meaning("the arms were asked in turns", null=_OLD),
    "requests": Meaning("requests behind the row", unit="count"),
    "position": Meaning("place in the draft, from 1"),
    "share": Meaning("accepted over drafts at this place", unit="share", null=_STAND),
    "taken_from": Meaning("which stage measured it, where it was not this one", null="this one did"),
    "metric": Meaning("what the row compares"),
    "a": Meaning("median of arm A; a sum for wall clock and tokens", null=_NO_ANSWER),
    "a_p10": Meaning("its 10th percentile", null=_NO_ANSWER),
    "a_p90": Meaning("its 90th percentile", null=_NO_ANSWER),
    "b": Meaning("the same of arm B", null=_NO_ANSWER),
    "b_p10": Meaning("its 10th percentile", null=_NO_ANSWER),
    "b_p90": Meaning("its 90th percentile", null=_NO_ANSWER),
    "times": Meaning("how many times b the value of a is", null="either is missing"),
    "low": Meaning("lower end of its 95 % interval", null="no paired prompts"),
    "high": Meaning("upper end of it", null="no paired prompts"),
    "pairs": Meaning("paired prompts behind it", unit="count", null="none"),
    # traces
    "hit_tokens": Meaning("hit length by the lookup", unit="tokens", null="a stretch of time has no one value"),
    "candidate_tokens": Meaning(
        "length that the limiting groups could not back", unit="tokens", null="nothing limited it"
    ),
    "group": Meaning("the group as people read it"),
    "kind": Meaning("kind of the group: full, sliding, mamba or chunked"),
    "limiting": Meaning("the group ended the hit"),
    "state": Meaning("stored, needed, missing or evicted; nothing, or unknown where the group was not scanned"),
    "start": Meaning("first block, in the group's own numbers", unit="blocks", null="the state has no range"),
    "stop": Meaning("one past the last", unit="blocks", null="the state has no range"),
    "start_token": Meaning("the first block's first token", unit="tokens", null="the state has no range"),
    "stop_token": Meaning("one past the last block's last token", unit="tokens", null="the state has no range"),
    "vllm": Meaning("the engine's release"),
    "groups": Meaning("groups of this kind", unit="count"),
    "layers_each": Meaning("layers in each", unit="count"),
    "block_tokens": Meaning("tokens in one block", unit="tokens"),
    "window_tokens": Meaning("sliding window", unit="tokens", null="the group looks back to the start"),
    "bytes_per_block": Meaning("size of one block", unit="bytes", null="the trace does not say"),
    "scheduler_block_tokens": Meaning("hits are multiples of it", unit="tokens"),
    "start_s": Meaning("start, from the first lookup on", unit="s"),
    "stop_s": Meaning("end, from the first lookup on", unit="s"),
    "lookups": Meaning("lookups behind the row", unit="count"),
    "misses": Meaning("lookups that could have hit and did not", unit="count"),
    "missed_tokens": Meaning(
        "tokens that could have hit and did not", unit="tokens", null="a stretch has no one value"
    ),
    "evicted_blocks": Meaning("blocks that left the cache, over all groups", unit="blocks"),
    "resets": Meaning("how often the cache was emptied", unit="count"),
    "cause": Meaning("what the cause is called"),
    "meaning": Meaning("what that means"),
    # the run
    "lane": Meaning("stage or server"),
    "what": Meaning("stage, starting or serving"),
    "start_min": Meaning("start, from the run's first span on", unit="min"),
    "stop_min": Meaning("end, from the run's first span on", unit="min"),
    "id": Meaning("which server of the run"),
    "command": Meaning("how it was started, shortened, keys masked", null="not recorded"),
    "started_at": Meaning("when it was started", unit="UTC", null="not recorded"),
    "ready_at": Meaning("when it answered first", unit="UTC", null="it never did"),
    "stopped_at": Meaning("when it was stopped", unit="UTC", null="it was not, or not by us"),
    "fact": Meaning("what is told"),
    "value": Meaning("its value", null="no endpoint tells it"),
}  # fmt: skip
"""Column → meaning, in every frame that has it."""

IN_FRAME: Mapping[tuple[str, str], Meaning] = {
    ("answers", "arm"): Meaning("cold, control, warm or follow_up"),
    ("generations", "agree"): Meaning("both sources of drafts give the same counts", null="there was one at most"),
    ("generations", "document"): Meaning("number of the prompt within its shape"),
    ("output_pairs", "document"): Meaning("number of the prompt within its shape"),
    ("headrooms", "tokens"): Meaning("KV cache that one sequence could hold", unit="tokens", null="nothing tells it"),
    ("headrooms", "blocks"): Meaning("blocks of the pool", unit="blocks", null="nothing tells it"),
    ("lookups", "start_s"): Meaning("when it was asked, from the first lookup on", unit="s"),
    ("lookups", "stop_s"): Meaning("the same; of a stretch of time its end", unit="s"),
    ("lookups", "kind"): Meaning("hit, miss or nothing to hit", null="a stretch of time has no one kind"),
    ("lookups", "share"): Meaning(
        "hit over prompt tokens; of a stretch the median", unit="share", null="nothing to hit"
    ),
    ("lookups", "low"): Meaning("lower quartile of a stretch", unit="share", null="nothing to hit"),
    ("lookups", "high"): Meaning("upper quartile of a stretch", unit="share", null="nothing to hit"),
    ("lookups", "prompt_tokens"): Meaning("prompt length", unit="tokens", null="a stretch of time has no one value"),
    ("evictions", "share"): Meaning("hit over prompt tokens of its lookups together", unit="share", null="no lookup"),
    ("stores", "state"): Meaning("kept or dropped, or boundary: a token that the rule aimed at"),
    ("stores", "start"): Meaning("first block, in the group's own numbers", unit="blocks", null="a boundary has none"),
    ("stores", "stop"): Meaning("one past the last", unit="blocks", null="a boundary has none"),
    ("comparisons", "cached_tokens"): Meaning("hit of the second answer", unit="tokens", null="not reported"),
    ("equality", "identical"): Meaning("equal pairs", unit="count"),
    ("causes", "request_id"): Meaning("an example, the one that missed most"),
    ("latency", "cached_tokens"): Meaning("median hit of the row's sends", unit="tokens", null="not reported"),
    ("hits", "cached_tokens"): Meaning("median hit of the row's sends", unit="tokens", null="not reported"),
    ("timeline", "start"): Meaning("when it began", unit="UTC"),
    ("timeline", "stop"): Meaning("when it ended", unit="UTC"),
    ("timeline", "status"): Meaning("how the stage ended", null="a server's span has none"),
    ("generations", "seconds"): Meaning("wall time of the whole answer", unit="s", null="the request failed"),
    ("timeline", "seconds"): Meaning("how long it took", unit="s"),
    ("servers", "start_s"): Meaning("time from start to first answer", unit="s", null="it never answered"),
}  # fmt: skip
"""(Frame, column) → meaning, where a name means something else in one frame."""


def meaning(frame: str, column: str) -> Meaning:
    """What a column means in a frame.

    Raises
    ------
    KeyError
        for a column that nobody explained.
    """
    found = IN_FRAME.get((frame, column)) or COLUMNS.get(column)
    if found is None and column.endswith(("_p10", "_p90")):
        base = COLUMNS[column[:-4]]
        found = Meaning(f"{column[-2:]}th percentile of: {base.text}", unit=base.unit, null=base.null)
    return found if found is not None else COLUMNS[column]
