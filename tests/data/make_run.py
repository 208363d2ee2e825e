"""A run directory shaped like a real one, its hits from the arithmetic that FACTS-like measurements follow.

Nothing here is evidence: it exists so that frames, charts and the report can be tested without an engine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from data.streamed import speculation_rows

from prefixscope.setting import Interval, Setting, digest

BLOCK = 64
LENGTHS = (150, 704, 1089, 3008, 6446)
INTERVALS: tuple[Interval, ...] = (None, 64, 512, 1024, 2048, 4096, "dense")
"""None is measured without the flag: the release's default, 0 on vLLM 0.29.0."""
CONFIGURATIONS = (
    (Setting(drafter=False), ("gemma4-tiny",)),
    (Setting(), ("gemma4-tiny",)),
    (Setting(lora=True), ("gemma4-tiny", "gemma4-tiny-lora")),
    (Setting(lora=True, interval=1024), ("gemma4-tiny", "gemma4-tiny-lora")),
)
FAMILY = "gemma4-tiny"


def hit(setting: Setting, tokens: int, index: int) -> int:
    """The hit of send ``index`` on vLLM 0.29.0 with 32/64-token groups and a window of 1,024."""
    best = (tokens - 1) // BLOCK * BLOCK
    if index == 1:
        return 0
    if not setting.drafter:
        return best
    if tokens <= 1088:
        return max(best - 2 * BLOCK, 0)
    if setting.interval in (None, 0):
        return 0 if index == 2 else best - BLOCK
    if isinstance(setting.interval, int) and setting.interval > 1024 and index == 2:
        return (best - BLOCK) // setting.interval * setting.interval
    return best - BLOCK


def sliding_blocks(setting: Setting, tokens: int) -> int:
    """Blocks one sliding group keeps after one send."""
    total, need = (tokens - 1) // 32, 33
    if setting.interval in (None, 0):
        return min(need, total)
    if isinstance(setting.interval, int) and setting.interval > 1024:
        return min(need * (1 + tokens // setting.interval), total)
    return total


class _Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def tick(self, seconds: float) -> str:
        self.seconds += seconds
        whole = int(self.seconds)
        return f"2026-11-29T10:{whole // 60:02d}:{whole % 60:02d}.{int(self.seconds % 1 * 1000):03d}+00:00"


def _prompt(tokens: int) -> dict[str, Any]:
    return {"name": f"{tokens:,} tokens", "tokens": tokens, "digest": digest(tokens), "seed": 7}


def _send(
    clock: _Clock, stage: str, setting: Setting, server: str, model: str, tokens: int, send: str, index: int, hits: int
) -> dict[str, Any]:
    identity = digest([setting.id, model, tokens, send, index])
    total = tokens + (595 if send == "follow_up" else 0)
    wobble = 1 + (int(identity[:4], 16) % 100 - 50) / 800
    seconds = round((70 + (total - hits) * 0.37) * wobble * (2 if "lora" in model else 1), 1)
    return {
        "schema": 1,
        "kind": "send",
        "cell": identity,
        "series": digest([setting.id, model, tokens]),
        "attempt": "a1b2c3d4",
        "role": "lora" if model.endswith("lora") else "base",
        "stage": stage,
        "at": clock.tick(seconds / 1000),
        "setting": setting.to_json(),
        "server": server,
        "model": model,
        "prompt": _prompt(tokens),
        "send": send,
        "index": index,
        "request_id": f"ps-{stage}-{identity}",
        "status": "ok",
        "error": None,
        "prompt_tokens": total,
        "cached_tokens": hits,
        "shared_tokens": {"new_ending": max(tokens - 200, 0), "follow_up": tokens - 3}.get(send),
        "completion_tokens": 1,
        "first_token_ms": seconds,
        "metrics": {"queries": total, "hits": hits},
    }


def baseline_rows(clock: _Clock) -> Iterator[dict[str, Any]]:
    for number, (setting, models) in enumerate(CONFIGURATIONS):
        for model in models:
            for tokens in LENGTHS:
                for index in (1, 2, 3):
                    send = "cold" if index == 1 else "repeat"
                    yield _send(
                        clock,
                        "baseline",
                        setting,
                        f"s{number:02d}",
                        model,
                        tokens,
                        send,
                        index,
                        hit(setting, tokens, index),
                    )
                yield _send(clock, "baseline", setting, f"s{number:02d}", model, tokens, "control", 1, 0)
                ending = max((tokens - 200) // BLOCK * BLOCK - 2 * BLOCK, 0) if tokens < 1089 else 0
                yield _send(clock, "baseline", setting, f"s{number:02d}", model, tokens, "new_ending", 1, ending)
                follow = hit(setting, tokens, 3)
                yield _send(clock, "baseline", setting, f"s{number:02d}", model, tokens, "follow_up", 1, follow)


def sweep_rows(clock: _Clock) -> Iterator[dict[str, Any]]:
    for number, interval in enumerate(INTERVALS):
        setting = Setting(interval=interval)
        for tokens in LENGTHS[1:]:
            for index in (1, 2, 3) if interval is not None else ():
                send = "cold" if index == 1 else "repeat"
                hits = hit(setting, tokens, index)
                yield _send(clock, "sweep", setting, f"s{number + 3:02d}", FAMILY, tokens, send, index, hits)
            for gid in range(6):
                blocks = tokens // BLOCK if gid == 5 else sliding_blocks(setting, tokens)
                yield {
                    "schema": 1,
                    "kind": "kept",
                    "stage": "sweep",
                    "series": digest([setting.id, FAMILY, tokens]),
                    "setting": setting.to_json(),
                    "interval": 0 if interval is None else interval,
                    "prompt": _prompt(tokens),
                    "gid": gid,
                    "group_kind": "full" if gid == 5 else "sliding",
                    "block_size": 64 if gid == 5 else 32,
                    "blocks": blocks,
                    "bytes": blocks * 32768,
                }


def trace_events(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The tracer's events for the repeats of the longest prompt with MTP, without and with interval 1,024."""
    groups = [
        {
            "gid": gid,
            "kind": "full" if gid == 5 else "sliding",
            "spec": "FullAttentionSpec" if gid == 5 else "SlidingWindowSpec",
            "block_size": 64 if gid == 5 else 32,
            "window": None if gid == 5 else 1024,
            "layers": 2,
            "layer_names": [f"layers.{gid}"],
            "drafter": False,
            "bytes_per_block": 32768,
        }
        for gid in range(6)
    ]
    cold: dict[str, str] = {}
    common = {"schema": 1, "t": 1795987870.9, "pid": 9293, "engine": "14102055"}
    yield {
        **common, "event": "header", "version": "0.29.0", "caching": True, "groups": groups, "scheduler_block": BLOCK,
        "hash_block": 32, "alignment": BLOCK, "pool_blocks": 20000, "interval": 0, "drop_groups": [0, 1, 2, 3, 4, 5],
        "min_prompt_tokens": 193, "spec_method": "mtp", "spec_tokens": 3, "dp_rank": 0,
    }  # fmt: skip
    for row in rows:
        if row["kind"] != "send" or row["send"] not in ("cold", "repeat") or row["prompt"]["tokens"] != 6446:
            continue
        label = row["setting"]["label"]
        if label not in ("MTP", "MTP, interval 1,024"):
            continue
        stored = (
            []
            if row["send"] == "cold"
            else [[0, 201]]
            if label != "MTP"
            else [[168, 201]]
            if row["index"] == 2
            else [[166, 201]]
        )
        missed = row["send"] == "repeat" and not row["cached_tokens"]
        first = row["send"] == "cold"
        closest = {} if first else {"closest": {"request": cold[label], "common_tokens": 6432}}
        engine_id = f"chatcmpl-{row['request_id']}-abcdef01"
        if first:
            cold[label] = engine_id
        yield {
            **common, **closest, "event": "lookup", "request": engine_id, "n": 1, "prompt_tokens": 6446,
            "tokens": 6446, "max_hit_tokens": 6445, "hit_tokens": row["cached_tokens"], "reachable_tokens": 6336,
            "candidate_tokens": 6336, "junction_tokens": 6336 if missed else None, "skipped": False, "steps": [],
            "limiting": [0, 1, 2, 3, 4] if missed else [], "scan": "full", "free_blocks": 19999, "hook_us": 300,
            "hook_total_us": 900,
            "groups": [
                {"gids": [0, 1, 2, 3, 4], "cached": stored, "needed": [166, 199], "backs": row["cached_tokens"]},
                {"gids": [5], "cached": [] if first else [[0, 100]], "needed": [0, 100], "backs": 6336},
            ],
        }  # fmt: skip
        if first:
            kept, dropped = ([[168, 201]], [[0, 168]]) if label == "MTP" else ([[0, 201]], [])
            yield {
                **common, "event": "store", "request": engine_id, "when": "end",
                "groups": [
                    {"gids": [0, 1, 2, 3, 4], "kept": kept, "dropped": dropped, "boundaries": [6445]},
                    {"gids": [5], "kept": [[0, 100]], "dropped": [], "boundaries": [6445]},
                ],
            }  # fmt: skip


def equality_rows(
    documents: int = 10, text: str = "The harbour lights were counted twice."
) -> Iterator[dict[str, Any]]:
    setting = Setting(lora=True, interval=1024)
    for model in ("gemma4-tiny", "gemma4-tiny-lora"):
        for number in range(1, documents + 1):
            document, differs = f"doc {number}", number == 4 and model.endswith("lora")
            for arm, cached in (("cold", 0), ("control", 0), ("warm", 5952), ("follow_up", 5952)):
                yield {
                    "schema": 1,
                    "kind": "answer",
                    "stage": "equality",
                    "setting": setting.to_json(),
                    "model": model,
                    "document": document,
                    "arm": arm,
                    "request_id": f"ps-equality-{model}-{number}-{arm}",
                    "prompt_tokens": 6020,
                    "cached_tokens": cached,
                    "token_ids": [1, 2, 3],
                    "text": text,
                    "logprobs": [-0.1, -0.2, None],
                    "top2": [0.4, 0.3, None],
                    "status": "ok",
                    "error": None,
                }
            for pair in ("cold-control", "cold-warm"):
                different = differs and pair == "cold-warm"
                yield {
                    "schema": 1,
                    "kind": "comparison",
                    "stage": "equality",
                    "document": document,
                    "model": model,
                    "pair": pair,
                    "identical": not different,
                    "by": "token ids",
                    "first_difference": 17 if different else None,
                    "margin": 0.004 if different else None,
                    "class": "markup" if different else "identical",
                    "cached_tokens": 0 if pair == "cold-control" else 5952,
                }


def manifest(seconds: float = 470.0) -> dict[str, Any]:
    """What ``run.json`` holds after a whole run."""
    stages, time, servers, start = {}, [], [], 0.0
    for stage, took in (
        ("baseline", 150.0),
        ("trace", 6.0),
        ("sweep", 170.0),
        ("equality", 70.0),
        ("speculation", 60.0),
        ("report", 14.0),
    ):
        stages[stage] = {
            "status": "done",
            "started_at": _at(start),
            "finished_at": _at(start + took),
            "seconds": took,
            "error": None,
            "note": None,
            "parameters": {"load": [6446, 60, 0.7]} if stage == "speculation" else {},
        }
        time += [{"stage": stage, "what": "measuring", "seconds": took * 0.6, "at": _at(start)}]
        time += [{"stage": stage, "what": "server start", "seconds": took * 0.35, "at": _at(start)}]
        start += took
    settings = [setting for setting, _ in CONFIGURATIONS] + [Setting(interval=interval) for interval in INTERVALS[1:]]
    for number, setting in enumerate(settings):
        begin = number * 41.0
        flag = f" --prefix-cache-retention-interval {setting.interval}" if setting.interval is not None else ""
        servers.append(
            {
                "id": f"s{number:02d}",
                "setting": setting.to_json(),
                "command": "/home/someone/.cache/prefixscope/engines/0.29.0/bin/python -m "
                "vllm.entrypoints.openai.api_server --model /home/someone/.cache/prefixscope/models/gemma4-tiny"
                f" --enable-prefix-caching --enable-prompt-tokens-details{flag}",
                "start_s": 23.4,
                "started_at": _at(begin),
                "ready_at": _at(begin + 23.4),
                "stopped_at": _at(begin + 40.0),
            }
        )
    return {
        "schema_version": 1,
        "run_id": "2026-11-29-100000-7f3a",
        "created_at": _at(0),
        "prefixscope_version": "0.1.0",
        "target": {"kind": "embedded", "label": "embedded vLLM 0.29.0, Gemma-4-shaped tiny model"},
        "parameters": {"baseline": {"tokens": list(LENGTHS)}, "sweep": {"intervals": list(INTERVALS)}},
        "engine": {"version": "0.29.0"},
        "environment": {
            "python": "3.11.9",
            "platform": "Linux x86_64",
            "cpus": 2,
            "memory_gib": 15.6,
            "hostname": "build-host-17.internal",
            "home": "/home/someone",
        },
        "stages": stages,
        "facts": [
            {"name": "vLLM version", "value": "0.29.0", "source": "/version"},
            {"name": "served models", "value": ["gemma4-tiny", "gemma4-tiny-lora"], "source": "/v1/models"},
        ],
        "warnings": [
            {
                "code": "noisy-clock",
                "stage": "baseline",
                "detail": "The load average was 1.9 on 2 cores while latencies were measured.",
                "remedy": "Run again on an idle machine if the latencies matter to you.",
            }
        ],
        "servers": servers,
        "time": time,
    }


def _at(seconds: float) -> str:
    return _Clock().tick(seconds)


def make_run(
    directory: Path,
    *,
    stages: tuple[str, ...] = ("baseline", "trace", "sweep", "equality", "speculation"),
    text: str = "",
) -> Path:
    """A whole synthetic run directory; ``stages`` limits what has rows, ``text`` replaces the answers' text."""
    (directory / "raw").mkdir(parents=True, exist_ok=True)
    clock, value = _Clock(), manifest()
    rows = {
        "baseline": list(baseline_rows(clock)),
        "sweep": list(sweep_rows(clock)),
        "equality": list(equality_rows(text=text) if text else equality_rows()),
        "speculation": list(speculation_rows()),
    }
    if "trace" in stages:
        (directory / "trace").mkdir(exist_ok=True)
        events = trace_events([row for found in rows.values() for row in found])
        (directory / "trace" / "trace-9293.jsonl").write_text(
            "".join(json.dumps(event) + "\n" for event in events), encoding="utf-8"
        )
    for stage, found in rows.items():
        if stage in stages:
            lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)
            (directory / "raw" / f"{stage}.jsonl").write_text(lines, encoding="utf-8")
        else:
            value["stages"][stage] = {"status": "pending"}
    (directory / "run.json").write_text(json.dumps(value, indent=1), encoding="utf-8")
    return directory
