"""What does speculative decoding buy? The same prompts streamed from a server with the drafter and from one without.

Each prompt (a *shape* and a document number) is asked ``repeats`` times on each *arm* under a salt of its own, the arms
taking turns: one repeat against the other on one arm is that arm's own noise, one arm against the other is the drafter.
"""

from __future__ import annotations

from prefixscope.speculation.arms import Arm, Mix, arms
from prefixscope.speculation.stage import run

__all__ = ["Arm", "Mix", "arms", "run"]
