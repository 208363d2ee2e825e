"""From one lookup to a cause, in words: what ended the hit, what shows it, what brings it back, and at what price.

Nothing here repeats vLLM's rules. What a hit needed, what was cached, what a full cache would have given and what the
store side kept were all recorded inside the engine (`prefixscope.trace`); here they are only compared.

| cause | the hit is short because |
|---|---|
| full_hit | it is not: only the last tokens are computed, as for every prompt |
| spec_drop | speculative decoding gives up a block at lookup, and the rest is rounded down |
| cannot_hit | the prompt is shorter than the shortest that can hit |
| cold | nothing like this prompt came before |
| windows_dont_meet | what was stored and what the lookup needs lie side by side (the incident) |
| chunk_ends | a Mamba state exists only where a prefill chunk ended, and none ended where this lookup lands |
| third_send | it is not, any more: an earlier send missed and left the blocks behind |
| interval_too_long | the checkpoints that the interval keeps are far apart |
| shared_part | only a part of the prompt was seen before, and no checkpoint lies at its end |
| prompts_differ | only a part of the prompt was seen before |
| evicted | the blocks were stored and have since been evicted |
| cache_reset | the prefix cache was reset in between |
| other_engine | another engine process (data-parallel rank) saw this prompt |
| retried | the hit shrank while the request waited, or it was preempted |
| hit_not_used | the lookup found more than the admission used |
| caching_off | the engine looks nothing up |
| cant_tell | the trace does not decide; the sentence names the causes left and the measurement that would |
"""

from __future__ import annotations

from prefixscope.diagnosis.case import Diagnosis
from prefixscope.diagnosis.causes import explain
from prefixscope.diagnosis.evidence import groups_text, shared_text
from prefixscope.diagnosis.words import cause_meaning, cause_words

__all__ = ["Diagnosis", "cause_meaning", "cause_words", "explain", "groups_text", "shared_text"]
