"""What a server would hit, from the engine's own scheduler: no GPU, no weights, no server."""

from prefixscope.replay.case import (
    Case,
    Geometry,
    Group,
    Outcome,
    Predicted,
    Request,
    ServerSetting,
    repeats,
    total_tokens,
)
from prefixscope.replay.worker import Replayer, open_release

__all__ = [
    "Case",
    "Geometry",
    "Group",
    "Outcome",
    "Predicted",
    "Replayer",
    "Request",
    "ServerSetting",
    "open_release",
    "repeats",
    "total_tokens",
]
