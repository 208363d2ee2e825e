"""The KV cache groups of a server and their block sizes, as plain data that travels with a report."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from prefixscope.errors import ReplayError
from prefixscope.trace import Header


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
