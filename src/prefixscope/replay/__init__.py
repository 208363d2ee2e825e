"""What a server would hit, from the engine's own scheduler: no GPU, no weights, no server."""

from prefixscope.replay import geometries
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
from prefixscope.replay.grid import PATTERNS, Cell, Grid, ask, default_intervals, heat_grid
from prefixscope.replay.matrix import Probe
from prefixscope.replay.prompts import Share, parse_tokens, read_prompts, thinned
from prefixscope.replay.releases import RELEASES, choose_releases, install_line
from prefixscope.replay.survey import Survey, survey
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
    "Probe",
    "Replayer",
    "Request",
    "ServerSetting",
    "Share",
    "Survey",
    "ask",
    "choose_releases",
    "default_intervals",
    "geometries",
    "heat_grid",
    "install_line",
    "open_release",
    "parse_tokens",
    "read_prompts",
    "repeats",
    "survey",
    "thinned",
    "total_tokens",
]
