"""What is replayed: a geometry, a server's settings and requests, as plain data that travels with a report.

Nothing here holds a token id or a text: a prompt is ``(content, length)`` segments, and two prompts share exactly the
segments that they begin with alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from prefixscope.errors import ReplayError
from prefixscope.replay.geometry import Geometry
from prefixscope.setting import Interval
from prefixscope.trace import Header

SCHEMA_VERSION = 1
MOST_TOKENS = 500_000_000
"""Prompt tokens of a case that is read from a file; a day of a busy server has fewer."""
Segment = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSetting:
    """How the server is started, as far as hits depend on it.

    ``interval`` None is the release's own default. ``drafter_tokens`` None is no speculative decoding;
    ``drafter_method`` is vLLM's word for its kind. ``pool_blocks`` None is a pool that never evicts.
    ``lookahead_hashes`` False turns off what 0.33.0 hashes of the next block; other releases have no such thing.
    """

    interval: Interval = None
    drafter_tokens: int | None = None
    drafter_method: str = "mtp"
    pool_blocks: int | None = None
    caching: bool = True
    max_batched_tokens: int | None = None
    max_seqs: int | None = None
    lookahead_hashes: bool = True

    @classmethod
    def from_header(cls, header: Header, *, pool: bool = False) -> ServerSetting:
        """The settings of a running engine, its resolved interval included; its pool only where asked for."""
        return cls(
            interval=header.interval,
            drafter_tokens=header.spec_tokens,
            drafter_method=header.spec_method or "mtp",
            pool_blocks=header.pool_blocks if pool else None,
            caching=header.caching,
            max_batched_tokens=header.max_batched_tokens,
            max_seqs=header.max_seqs,
        )

    def to_json(self) -> dict[str, Any]:
        found = asdict(self)
        tokens, method = found.pop("drafter_tokens"), found.pop("drafter_method")
        drafter = None if tokens is None else {"tokens": tokens, **({} if method == "mtp" else {"method": method})}
        if not found.pop("lookahead_hashes") and drafter is not None:
            drafter["lookahead_hashes"] = False
        return {**found, "drafter": drafter}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ServerSetting:
        known = {one.name: value[one.name] for one in fields(cls) if one.name in value}
        if value.get("drafter"):
            known["drafter_tokens"] = int(value["drafter"]["tokens"])
            known["drafter_method"] = str(value["drafter"].get("method", "mtp"))
            known["lookahead_hashes"] = bool(value["drafter"].get("lookahead_hashes", True))
        return cls(**known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request of a replay.

    ``segments`` make the prompt. ``answer`` is what is generated, one token of its own without. ``accepted`` draft
    tokens are taken in each step. ``tally`` counts each group's cached blocks after it. ``reset`` stands for a reset of
    the prefix cache instead of a request.
    """

    id: str
    segments: tuple[Segment, ...] = ()
    salt: str | None = None
    lora: str | None = None
    answer: Segment | None = None
    accepted: int = 0
    tally: bool = False
    reset: bool = False

    @property
    def tokens(self) -> int:
        """Prompt tokens."""
        return sum(length for _, length in self.segments)

    def to_json(self) -> dict[str, Any]:
        if self.reset:
            return {"id": self.id, "reset": True}
        found: dict[str, Any] = {"id": self.id, "segments": [list(one) for one in self.segments]}
        if self.salt is not None:
            found["salt"] = self.salt
        if self.lora is not None:
            found["lora"] = self.lora
        if self.answer is not None:
            found["answer"] = list(self.answer)
        if self.accepted:
            found["accepted"] = self.accepted
        if self.tally:
            found["tally"] = True
        return found

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Request:
        return cls(
            id=str(value["id"]),
            segments=tuple((str(name), int(length)) for name, length in value.get("segments", ())),
            salt=value.get("salt"),
            lora=value.get("lora"),
            answer=(str(value["answer"][0]), int(value["answer"][1])) if value.get("answer") else None,
            accepted=int(value.get("accepted", 0)),
            tally=bool(value.get("tally", False)),
            reset=bool(value.get("reset", False)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A geometry, a setting and requests in order: everything that a replay needs, and nothing that a prompt says."""

    geometry: Geometry
    setting: ServerSetting
    requests: tuple[Request, ...]
    release: str = ""
    name: str = ""
    measured: Mapping[str, int | None] = field(default_factory=dict)
    """Hits that a real engine gave, by request id; empty where nothing was measured."""

    def under(self, **changes: Any) -> Case:
        """The same case with other settings."""
        return replace(self, setting=replace(self.setting, **changes), measured={})

    def to_json(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "release": self.release,
            "geometry": self.geometry.to_json(),
            "setting": self.setting.to_json(),
            "requests": [one.to_json() for one in self.requests],
            "measured": dict(self.measured),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Case:
        """Read one.

        Raises
        ------
        ReplayError
            for a newer schema, or where something is missing.
        """
        check_schema(value)
        try:
            found = cls(
                geometry=Geometry.from_json(value["geometry"]),
                setting=ServerSetting.from_json(value["setting"]),
                requests=tuple(map(Request.from_json, value["requests"])),
                release=str(value.get("release", "")),
                name=str(value.get("name", "")),
                measured=dict(value.get("measured", {})),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ReplayError(
                f"the case can't be read: {type(error).__name__} {error}",
                cause="a case has geometry, setting and requests, as a report embeds it",
                remedy="give a report.html, the cases.json that it holds, or a run directory",
            ) from error
        total = total_tokens(found.requests)
        if total > MOST_TOKENS or any(length < 0 for one in found.requests for _, length in one.segments):
            raise ReplayError(
                f"the case {found.name!r} has {total:,} prompt tokens; a replay takes 0 to {MOST_TOKENS:,}",
                remedy="check the segments' lengths",
            )
        return found


def check_schema(value: Mapping[str, Any]) -> None:
    """Refuse what a newer prefixscope wrote.

    Raises
    ------
    ReplayError
        naming both versions.
    """
    version = value.get("schema_version", 0)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ReplayError(
            f"the case has schema version {version!r}; this prefixscope reads up to {SCHEMA_VERSION}",
            remedy="upgrade prefixscope",
        )


def repeats(tokens: int, times: int, *, name: str = "prompt") -> list[Request]:
    """The same prompt sent several times under a salt of its own: ids ``NAME/1``, ``NAME/2``…"""
    return [Request(id=f"{name}/{n}", segments=((name, tokens),), salt=name) for n in range(1, times + 1)]


def total_tokens(requests: Sequence[Request]) -> int:
    """Prompt tokens of all requests."""
    return sum(one.tokens for one in requests)
