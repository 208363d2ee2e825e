"""What releases would answer to a small prediction: numbers made up after those of the real schedulers."""

from __future__ import annotations

from typing import Any

from prefixscope.prediction import Now, Prediction
from prefixscope.replay import Cell, Geometry, Grid, Probe, Share, Survey

GEMMA = Geometry.from_json(
    {
        "groups": [
            {"kind": "sliding", "block_size": 16, "window": 1024, "count": 5, "bytes_per_block": 1 << 20},
            {"kind": "full", "block_size": 64, "bytes_per_block": 1 << 20},
        ]
    }
)

KEPT: dict[Any, int] = {0: 425, 1024: 2085, 2048: 1135}


def cells(release: str, hits: dict[Any, dict[int, int]], *, default: Any = 0, third: int = 6272) -> list[Cell]:
    """Three sends for each interval and length; ``hits`` are those of send 2."""
    found = []
    for interval, lengths in hits.items():
        for tokens, hit in lengths.items():
            for send in (1, 2, 3):
                found.append(
                    Cell(
                        release=release,
                        drafter_tokens=7,
                        interval=None if interval == default else interval,
                        resolved=interval,
                        pattern="repeat",
                        tokens=tokens,
                        send=send,
                        prompt_tokens=tokens,
                        reusable_tokens=0 if send == 1 else tokens,
                        hit_tokens=(0, hit, max(hit, min(third, tokens - 128)))[send - 1],
                        kept_blocks=(KEPT[interval],) if send == 1 else None,
                        kept_bytes=(KEPT[interval] << 20,) if send == 1 else None,
                    )
                )
    return found


OLD = cells("0.29.0", {0: {1600: 0, 6392: 0}, 1024: {1600: 1472, 6392: 6272}, 2048: {1600: 0, 6392: 6272}})
NEW = cells("0.30.0", {0: {1600: 1472, 6392: 6272}, 1024: {1600: 1472, 6392: 6272}, 2048: {1600: 1472, 6392: 6272}})


def probe(release: str, name: str, hit_2: int, hit_3: int = 6272, **more: Any) -> Probe:
    values = {"interval": 0, "tokens": 6392, "kept_blocks": 425, "drop_groups": 6, "groups": 6, "lookahead_tokens": 0}
    return Probe(release=release, probe=name, hit_2=hit_2, hit_3=hit_3, **{**values, **more})


PROBES = [
    *(probe("0.29.0", name, 0) for name in ("default", "sparse")),
    probe("0.29.0", "multiple", 0, tokens=6400),
    probe("0.29.0", "plain", 6336, 6336, drop_groups=0),
    *(probe("0.30.0", name, 6272) for name in ("default", "sparse")),
    probe("0.30.0", "multiple", 6272, tokens=6400),
    probe("0.30.0", "plain", 6336, 6336, drop_groups=0),
    *(probe("0.33.0", name, 6336, 6336, drop_groups=0, lookahead_tokens=1) for name in ("default", "sparse")),
    probe("0.33.0", "legacy", 6272),
]


def prediction(**more: Any) -> Prediction:
    shares = (Share(tokens=1600), Share(tokens=6392))
    values: dict[str, Any] = {
        "grid": Grid(geometry=GEMMA, lengths=(1600, 6392), intervals=(None, 1024, 2048), drafters=(7,)),
        "survey": Survey(cells=[*OLD, *NEW], probes=PROBES),
        "asked": shares,
        "shares": shares,
        "now": Now(release="0.29.0"),
    }
    return Prediction(**{**values, **more})


def heat_cells() -> list[Cell]:
    """Two releases that agree and one that does not, on a small map."""
    found = []
    for release in ("0.29.0", "0.30.0", "0.31.0"):
        for interval in (0, 1024, "dense"):
            for tokens in range(32, 6400, 64):
                missed = release == "0.29.0" and interval == 0 and tokens > 1088
                for send in (1, 2):
                    hit = 0 if missed or send == 1 else max(0, (tokens - 1) // 64 * 64 - 64)
                    found.append(
                        Cell(
                            release=release, drafter_tokens=7, interval=interval, resolved=interval, pattern="repeat",
                            tokens=tokens, send=send, prompt_tokens=tokens, reusable_tokens=tokens * (send - 1),
                            hit_tokens=hit,
                        )
                    )  # fmt: skip
    return found
