"""What is replayed: a geometry, a server's settings and requests, as plain data that travels with a report.

Nothing here holds a token id or a text: a prompt is ``(content, length)`` segments, and two prompts share exactly the
segments that they begin with alike.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from prefixscope.errors import ReplayError
from prefixscope.setting import Interval
from prefixscope.trace import Header

SCHEMA_VERSION = 1
MOST_TOKENS = 500_000_000
"""Prompt tokens of a case that is read from a file; a day of a busy server has fewer."""
Segment = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One KV cache group.

    ``spec`` and ``fields`` (JSON) are the release's own KV cache spec where it is known; without, the group is built
    from ``kind``, ``block_size`` (tokens) and ``window`` (tokens). ``layer_names`` let another release group the layers
    anew.
    """

    kind: str
    block_size: int
    window: int | None = None
    layers: int = 1
    drafter: bool = False
    bytes_per_block: int | None = None
    spec: str = ""
    fields: str = ""
    layer_names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What these releases make of a model, with its drafter or without."""

    releases: tuple[str, ...]
    drafter: bool
    geometry: Geometry


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The KV cache groups of a server and the block sizes that its engine resolved.

    ``origin`` says where it comes from, in words; ``release`` is the one that grouped the layers, empty where a person
    did. ``pool_blocks`` is the server's own pool, shared by all groups; None where nobody knows. ``variants`` are what
    other releases, or a server without the drafter, make of the same model; see `on`.
    """

    groups: tuple[Group, ...]
    scheduler_block: int
    hash_block: int
    pool_blocks: int | None = None
    origin: str = ""
    release: str = ""
    inferred: tuple[str, ...] = ()
    variants: tuple[Variant, ...] = ()

    @classmethod
    def from_header(cls, header: Header) -> Geometry:
        """The geometry that a running engine says it has."""
        return cls(
            groups=tuple(
                Group(
                    kind=group.kind,
                    block_size=group.block_size,
                    window=group.window,
                    layers=group.layers,
                    drafter=group.drafter,
                    bytes_per_block=group.bytes_per_block,
                    spec=group.spec if group.fields else "",
                    fields=group.fields,
                    layer_names=group.layer_names,
                )
                for group in header.groups
            ),
            scheduler_block=header.scheduler_block,
            hash_block=header.hash_block,
            pool_blocks=header.pool_blocks,
            origin="the trace of a running engine",
            release=header.version,
        )

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Geometry:
        """Read one; a group may have a ``count``.

        Raises
        ------
        ReplayError
            where something is missing or no number.
        """
        try:
            groups: list[Group] = []
            for place, row in enumerate(value["groups"]):
                known = {one.name: row[one.name] for one in fields(Group) if one.name in row}
                if isinstance(known.get("fields"), Mapping):
                    known["fields"] = json.dumps(known["fields"], sort_keys=True)
                if not isinstance(known.get("block_size"), int) or known["block_size"] < 1:
                    raise ReplayError(
                        f"KV cache group {place} has the block size {known.get('block_size')!r}",
                        remedy="give a positive number of tokens",
                    )
                known["layer_names"] = tuple(map(str, known.get("layer_names", ())))
                groups += [Group(**known)] * int(row.get("count", 1))
            if not groups:
                raise ReplayError("the geometry has no KV cache group", remedy="give each group's kind and block_size")
            sizes = [group.block_size for group in groups]
            return cls(
                groups=tuple(groups),
                scheduler_block=int(value.get("scheduler_block") or math.lcm(*sizes)),
                hash_block=int(value.get("hash_block") or math.gcd(*sizes)),
                pool_blocks=value.get("pool_blocks"),
                origin=str(value.get("origin", "")),
                release=str(value.get("release", "")),
                inferred=tuple(value.get("inferred", ())),
                variants=tuple(
                    Variant(
                        releases=tuple(one["releases"]),
                        drafter=bool(one["with_drafter"]),
                        geometry=cls.from_json({**_shared(value), **one}),
                    )
                    for one in value.get("variants", ())
                ),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ReplayError(
                f"the geometry can't be read: {type(error).__name__} {error}",
                cause="it lacks groups, each with kind and block_size",
                remedy="start from one of data/geometries, or from a trace: prefixscope predict --trace FILE",
            ) from error

    def to_json(self) -> dict[str, Any]:
        """As `from_json` and the worker take it; the order of the groups is that of the engine."""
        groups = []
        for group in self.groups:
            row = {key: value for key, value in asdict(group).items() if value not in (None, "", ())}
            if group.fields:
                row["fields"] = json.loads(group.fields)
            groups.append(row)
        left_out = ("groups", "variants")
        return {**{key: value for key, value in asdict(self).items() if key not in left_out}, "groups": groups}

    def on(self, release: str, *, drafter: bool) -> Geometry:
        """The geometry of the same model on that release, with its drafter or without; this one where none is known."""
        for one in self.variants:
            if release in one.releases and one.drafter == drafter:
                return one.geometry
        return self

    @property
    def bytes_per_block(self) -> int | None:
        """Bytes of one block of the pool: the largest group's; None where no group says."""
        known = [group.bytes_per_block for group in self.groups if group.bytes_per_block]
        return max(known) if known else None


def _shared(value: Mapping[str, Any]) -> dict[str, Any]:
    """What a geometry's variants have in common with it."""
    return {key: value[key] for key in ("origin", "inferred", "pool_blocks") if key in value}


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


@dataclass(frozen=True, slots=True)
class Predicted:
    """What one request of a replay came to, tokens and blocks.

    ``evicted_blocks`` are those that the pool gave away since the request before; ``cached_blocks`` it held after, and
    ``kept_blocks`` of each group where the request asked for a tally.
    """

    id: str
    prompt_tokens: int
    hit_tokens: int
    preempted: int
    evicted_blocks: int
    cached_blocks: int
    kept_blocks: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One replay: its rows, what the release resolved, and what it keeps at the end.

    ``interval`` is 0, tokens or ``"dense"``. ``kept_blocks``, ``kept_bytes`` and ``block_bytes`` are per group (bytes
    None where the geometry does not say). ``left_out`` names fields of the geometry's specs that this release does not
    have. ``regrouped`` says that this release grouped and marked another's layers anew. ``drop_groups``
    give up a block at lookup; ``lookahead_tokens`` past a block's end enter its hash.
    """

    release: str
    rows: tuple[Predicted, ...]
    pool_blocks: int
    interval: int | str
    drop_groups: tuple[int, ...]
    kept_blocks: tuple[int, ...]
    kept_bytes: tuple[int | None, ...]
    left_out: tuple[str, ...]
    seconds: float
    block_bytes: tuple[int | None, ...] = ()
    lookahead_tokens: int = 0
    regrouped: bool = False

    def hit(self, request_id: str) -> int:
        """Hit of the request with that id, tokens."""
        return next(row.hit_tokens for row in self.rows if row.id == request_id)

    @property
    def hit_rate(self) -> float | None:
        """Cached tokens over prompt tokens; None without requests."""
        total = sum(row.prompt_tokens for row in self.rows)
        return sum(row.hit_tokens for row in self.rows) / total if total else None


def repeats(tokens: int, times: int, *, name: str = "prompt") -> list[Request]:
    """The same prompt sent several times under a salt of its own: ids ``NAME/1``, ``NAME/2``…"""
    return [Request(id=f"{name}/{n}", segments=((name, tokens),), salt=name) for n in range(1, times + 1)]


def total_tokens(requests: Sequence[Request]) -> int:
    """Prompt tokens of all requests."""
    return sum(one.tokens for one in requests)
