"""The sides of a comparison, what is asked of each, and the load that its verdict is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from prefixscope.errors import RunError
from prefixscope.investigation import Investigation
from prefixscope.prompts import Message
from prefixscope.setting import Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One side of a comparison. ``url`` is set for a server that runs already."""

    name: str
    label: str
    setting: Setting
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One request: which prompt, and the how-manieth time.

    ``messages`` is a prompt of the caller's own, ``shape`` then its role; empty for one that is drawn.
    """

    shape: str
    document: int
    repeat: int
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """A load: prompt and answer lengths in tokens, and the share of requests whose prompt was sent once before."""

    prompt_tokens: int
    answer_tokens: int
    reuse: float

    @classmethod
    def of(cls, load: Sequence[float]) -> Mix:
        """``[6446, 200, 0.7]`` as the notebook's parameters have it.

        Raises
        ------
        RunError
            where it is not three numbers that make a load.
        """
        if len(load) != 3 or not all(isinstance(value, (int, float)) for value in load):
            raise RunError(
                f"speculation.load={list(load)!r} is not prompt tokens, answer tokens and a share of reuse",
                remedy="for example -p 'speculation.load=[6446, 200, 0.7]'",
            )
        return cls(prompt_tokens=int(load[0]), answer_tokens=int(load[1]), reuse=float(load[2]))

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.answer_tokens < 1 or not 0 <= self.reuse <= 1:
            raise RunError(
                f"no load has {self.prompt_tokens:,} prompt tokens, {self.answer_tokens:,} answer tokens and a reuse "
                f"of {self.reuse}",
                remedy="lengths are positive, and reuse is a share from 0 to 1",
            )


def arms(investigation: Investigation, other: str = "") -> tuple[Arm, ...]:
    """The sides to compare: drafter on and off where the target restarts; else the server that is served, and another.

    Raises
    ------
    RunError
        for a second address where the target's own servers are compared.
    """
    target = investigation.target
    if target.kind == "attached":
        served = Setting(as_served=True)
        first = Arm(name="A", label="server A" if other else "as served", setting=served, url=target.url)
        return (first, Arm(name="B", label="server B", setting=served, url=other)) if other else (first,)
    if other:
        raise RunError(
            f"speculation.other={other!r} goes with an attached server; {target.label} is compared with itself",
            remedy="prefixscope run --url http://first:8000 --only speculation -p speculation.other=http://second:8000",
        )
    plain = Arm(name="B", label=Setting(drafter=False).label, setting=Setting(drafter=False))
    if not target.offers()[0]:
        return (replace(plain, name="A"),)
    return (Arm(name="A", label=Setting().label, setting=Setting()), plain)
