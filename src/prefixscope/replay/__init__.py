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
from prefixscope.replay.grid import PATTERNS, Cell, Grid, ask
from prefixscope.replay.prompts import Share, parse_tokens, read_prompts, thinned
from prefixscope.replay.releases import RELEASES, choose_releases, install_line
from prefixscope.replay.worker import Replayer, open_release

__all__ = [
    "PATTERNS",
    "RELEASES",
    "Case",
    "Cell",
    "Geometry",
    "Grid",
    "Group",
    "Outcome",
    "Predicted",
    "Replayer",
    "Request",
    "ServerSetting",
    "Share",
    "ask",
    "choose_releases",
    "install_line",
    "open_release",
    "parse_tokens",
    "read_prompts",
    "repeats",
    "thinned",
    "total_tokens",
]
