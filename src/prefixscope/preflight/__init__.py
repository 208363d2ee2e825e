"""What is served and how, and what is known to be wrong with it, before anything is measured."""

from prefixscope.preflight.fact import Fact, facts, to_json, value
from prefixscope.preflight.fault import Fault, Situation, matching, situation, table
from prefixscope.preflight.finding import VARIABLE, Finding, findings
from prefixscope.preflight.model import choose_model, context, one_base
from prefixscope.preflight.seen import Seen, look

__all__ = [
    "VARIABLE",
    "Fact",
    "Fault",
    "Finding",
    "Seen",
    "Situation",
    "choose_model",
    "context",
    "facts",
    "findings",
    "look",
    "matching",
    "one_base",
    "situation",
    "table",
    "to_json",
    "value",
]
