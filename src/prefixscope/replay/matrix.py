"""What changed from release to release: the few prompts that tell them apart, asked of each.

| probe | what it asks |
|---|---|
| default | the second send at the release's own default interval |
| sparse | the same at interval 0: is the checkpoint where the lookup lands? (vllm#53945) |
| multiple | a prompt of an exact number of scheduler blocks, at interval 0 (vllm#54713) |
| plain | no drafter: what a lookup without a drop reuses |
| legacy | lookahead hashes off, where the release has them: which groups drop then? (vllm#61455) |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from prefixscope.replay.case import ServerSetting, repeats
from prefixscope.replay.geometry import Geometry
from prefixscope.replay.grid import takes_intervals
from prefixscope.replay.worker import Replayer

PROBES = ("default", "sparse", "multiple", "plain", "legacy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One question put to one release; tokens and blocks.

    ``drop_groups`` of ``groups`` give up a block at lookup. ``lookahead_tokens`` past its end enter a block's hash.
    ``kept_blocks`` is what the first send left, over all groups.
    """

    release: str
    probe: str
    interval: int | str
    tokens: int
    hit_2: int
    hit_3: int
    kept_blocks: int
    drop_groups: int
    groups: int
    lookahead_tokens: int


def ask_probes(replayer: Replayer, geometry: Geometry, *, tokens: int, drafter: int | None) -> list[Probe]:
    """Every probe that this release and setting have an answer to; ``tokens`` is the prompt's length."""
    found: list[Probe] = []
    block = geometry.scheduler_block
    multiple = max(1, tokens // block) * block
    if tokens == multiple:
        tokens = max(1, tokens - block // 2)  # the other probes are not about exact multiples
    for probe in PROBES:
        if probe == "legacy" and (drafter is None or not found[0].lookahead_tokens):
            continue
        setting = ServerSetting(
            interval=None if probe == "default" or not takes_intervals(geometry) else 0,
            drafter_tokens=None if probe == "plain" else drafter,
            lookahead_hashes=probe != "legacy",
        )
        length = multiple if probe == "multiple" else tokens
        cold, *later = repeats(length, 3)
        outcome = replayer.replay(geometry, setting, [replace(cold, tally=True), *later])
        found.append(
            Probe(
                release=replayer.release,
                probe=probe,
                interval=outcome.interval,
                tokens=length,
                hit_2=outcome.hit("prompt/2"),
                hit_3=outcome.hit("prompt/3"),
                kept_blocks=sum(outcome.rows[0].kept_blocks or ()),
                drop_groups=len(outcome.drop_groups),
                groups=len(geometry.groups),
                lookahead_tokens=outcome.lookahead_tokens,
            )
        )
    return found
