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
from prefixscope.replay.pressure import WARM_SHARE, Pressure, PressureRow, default_pools
from prefixscope.replay.worker import Replayer, open_release
from prefixscope.replay.workload import EXAMPLE, Workload, read_workload

__all__ = [
    "EXAMPLE",
    "WARM_SHARE",
    "Case",
    "Geometry",
    "Group",
    "Outcome",
    "Predicted",
    "Pressure",
    "PressureRow",
    "Replayer",
    "Request",
    "ServerSetting",
    "Workload",
    "default_pools",
    "open_release",
    "read_workload",
    "repeats",
    "total_tokens",
]
