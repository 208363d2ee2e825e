"""Does this server reuse prefixes at all? Hit lengths of repeated prompts, with and without drafter and adapter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pandas as pd

from prefixscope import asked, frames
from prefixscope.errors import RunError
from prefixscope.geometry import default_header, legal_interval
from prefixscope.investigation import Investigation
from prefixscope.measure import measure
from prefixscope.series import ALL_SENDS, Series, lengths_or_error
from prefixscope.setting import Interval, Setting

LENGTHS = (100, 1_000, 1_600, 6_446)


CONFIGURATIONS: Mapping[str, str] = {
    "no_mtp": "no drafter",
    "mtp": "with the drafter, at the release's default retention",
    "mtp_lora": "with the drafter and a LoRA adapter, both served names",
    "mtp_lora_interval": "the same with the retention interval set",
}


def settings(
    investigation: Investigation, configurations: Sequence[str] = tuple(CONFIGURATIONS), *, workaround: Interval = 1024
) -> list[tuple[Setting, str]]:
    """The configurations to compare, each with the role of the name it is asked under.

    A target without a drafter or an adapter has fewer; one that can't be restarted has one: as served.

    Raises
    ------
    RunError
        for an unknown configuration.
    """
    unknown = [name for name in configurations if name not in CONFIGURATIONS]
    if unknown:
        raise RunError(f"unknown configuration {unknown[0]!r}", remedy=f"use some of {', '.join(CONFIGURATIONS)}")
    if investigation.target.kind == "attached":
        roles = ("base", "lora") if investigation.serves_adapter else ("base",)
        return [(Setting(as_served=True), role) for role in roles]
    has_drafter, has_lora = investigation.target.offers()
    found: list[tuple[Setting, str]] = []
    if "no_mtp" in configurations or not has_drafter:
        found.append((Setting(drafter=False), "base"))
    if has_drafter and "mtp" in configurations:
        found.append((Setting(), "base"))
    for name, interval in (("mtp_lora", None), ("mtp_lora_interval", workaround)):
        if has_lora and name in configurations:
            found += [(Setting(drafter=has_drafter, lora=True, interval=interval), role) for role in ("base", "lora")]
    return found


def run(
    investigation: Investigation,
    *,
    lengths: Sequence[int] = LENGTHS,
    configurations: Sequence[str] = tuple(CONFIGURATIONS),
    workaround: int = 1024,
    seed: int = 1,
    keep_last: bool = True,
) -> pd.DataFrame:
    """Measure the configurations and return ``frames.sends`` of this stage.

    Parameters
    ----------
    lengths : prompt lengths, tokens.
    configurations : which of ``CONFIGURATIONS``.
    workaround : retention interval of the last configuration, tokens.
    seed : of the prompts' text.
    keep_last : leave the last server running for the equality stage.
    """
    given = {"lengths": lengths, "configurations": configurations, "workaround": workaround, "seed": seed}
    asked.check("baseline", given)
    chosen = settings(investigation, configurations, workaround=workaround)
    with investigation.stage("baseline", lengths=list(lengths), workaround=workaround, seed=seed) as stage:
        wanted = lengths_or_error(lengths)
        plan = [
            Series(setting=setting, role=role, tokens=tokens, seed=seed, sends=ALL_SENDS)
            for setting, role in chosen
            for tokens in wanted
        ]
        plain = [series for series in plan if series.setting.interval is None]
        spaced = [series for series in plan if series.setting.interval is not None]
        measure(
            investigation,
            stage,
            plain,
            then=spaced[0].setting if spaced else None,
            keep_last=keep_last and not spaced,
            keep=[setting for setting, _ in chosen if investigation.compared_later(setting)],
        )
        legal = legal_interval(default_header(investigation), workaround) if spaced else workaround
        if legal is None:
            stage.warn(
                "interval-does-nothing",
                "the model has no sliding-window or Mamba group: the configuration with an interval is left out",
                "nothing to do: full attention keeps every block",
            )
            return frames.sends(investigation.path)
        if legal != workaround:
            stage.warn(
                "interval-rounded",
                f"interval {workaround:,} is no multiple of the block: {legal:,} is used",
                f"nothing to do; -p baseline.workaround={legal} asks for it",
            )
        spaced = [replace(series, setting=replace(series.setting, interval=legal)) for series in spaced]
        measure(investigation, stage, spaced, keep_last=keep_last)
    return frames.sends(investigation.path)
