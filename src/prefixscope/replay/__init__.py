"""What a server would hit, from the engine's own scheduler: no GPU, no weights, no server."""

from prefixscope.replay import geometries
from prefixscope.replay.case import Case, Request, ServerSetting, repeats, total_tokens
from prefixscope.replay.geometry import Geometry, Group
from prefixscope.replay.grid import PATTERNS, Cell, Grid, ask, default_intervals, heat_grid
from prefixscope.replay.matrix import Probe
from prefixscope.replay.outcome import Outcome, Predicted
from prefixscope.replay.pools import check_pools, default_pools, parse_pools
from prefixscope.replay.pressure import WARM_SHARE, Pressure, PressureRow
from prefixscope.replay.prompts import Share, parse_tokens, read_prompts, thinned
from prefixscope.replay.releases import RELEASES, choose_releases, install_line
from prefixscope.replay.survey import Survey, survey
from prefixscope.replay.worker import Replayer, open_release
from prefixscope.replay.workload import EXAMPLE, Workload, read_workload

__all__ = [
    "EXAMPLE",
    "PATTERNS",
    "RELEASES",
    "WARM_SHARE",
    "Case",
    "Cell",
    "Geometry",
    "Grid",
    "Group",
    "Outcome",
    "Predicted",
    "Pressure",
    "PressureRow",
    "Probe",
    "Replayer",
    "Request",
    "ServerSetting",
    "Share",
    "Survey",
    "Workload",
    "ask",
    "check_pools",
    "choose_releases",
    "default_intervals",
    "default_pools",
    "geometries",
    "heat_grid",
    "install_line",
    "open_release",
    "parse_pools",
    "parse_tokens",
    "read_prompts",
    "read_workload",
    "repeats",
    "survey",
    "thinned",
    "total_tokens",
]
