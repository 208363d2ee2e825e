"""A server's log in words: its last lines, the line worth showing while it starts, and why it did not."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]?|[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-~])")
"""As ECMA-48 has them: a control sequence, a string up to its end, or a short one; one that is cut off too."""
_PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\)\s*)*(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\s+\S+\s+\S+\s+\[[^\]]*\]\s*)?")
_ERROR = re.compile(r"\b(?:[A-Za-z_.]*(?:Error|Exception|Interrupt))\b: (?P<text>\S.*)|\berror: (?P<plain>\S.*)")
_RETENTION = re.compile(
    r"prefix_cache_retention_interval \((?P<interval>-?\d+)\)[^()]*multiple of scheduler_block_size \((?P<block>\d+)\)"
)
_MISSING_MODEL = re.compile(
    r"Repository Not Found[^\n]*|Repo id must be[^\n]*|Incorrect path_or_model_id[^\n]*"
    r"|Invalid repository ID or local[^\n]*"
    r"|is not a local folder and is not a valid model identifier[^\n]*|Can't load the configuration of '[^']+'"
    r"|(?:LocalEntryNotFoundError|RepositoryNotFoundError|GatedRepoError|OfflineModeIsEnabled)[^\n]*",
    re.IGNORECASE,
)
# These only say that something failed elsewhere.
_EMPTY_ERRORS = ("Engine core initialization failed", "See root cause above", "Engine core proc", "EngineCore failed")


class Cause(NamedTuple):
    """Why a server did not start, and the next flag or command."""

    cause: str
    remedy: str


def tail(log: Path, *, lines: int = 20, most_bytes: int = 65_536) -> str:
    """The last lines of the log, without empty ones; empty where there is no log."""
    text = _end_of(log, most_bytes)
    kept = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(kept[-lines:])


def latest_step(log: Path, *, width: int = 100) -> str:
    """The last line that says what the server is doing, without its prefix: for a progress line."""
    for line in reversed(_end_of(log, 16_384).splitlines()):
        text = _PREFIX.sub("", line).strip()
        # Banners, bars, single settings and what every process says of itself do not tell how far it is.
        telling = sum(map(str.isalpha, text)) >= 8 and len(text.split()) >= 3
        if telling and not text.startswith(("warnings.warn", "#", "Traceback", "Triton ")):
            return text if len(text) <= width else text[: width - 1] + "…"
    return ""


def legal_neighbours(interval: int, block: int) -> list[int]:
    """The multiples of the scheduler block on either side of an interval, smallest first."""
    below = max(0, interval) // block * block
    return [below] if below == interval else [below, below + block]


def explain(log: Path, returncode: int | None, argv: Sequence[str] = ()) -> Cause:
    """The likely cause and the remedy, from what the log says and how the process ended."""
    text = _end_of(log, 262_144)
    for find in _KNOWN:
        if found := find(text, returncode):
            return found
    return _unknown(text, returncode, argv)


def _end_of(log: Path, most_bytes: int) -> str:
    """The end of the log as plain text, from the beginning of a line on."""
    try:
        with log.open("rb") as file:
            start = max(0, file.seek(0, 2) - most_bytes)
            file.seek(start)
            text = file.read().decode("utf-8", "replace").replace("\r", "\n")
    except OSError:
        return ""
    if start:  # the first line may be cut, in the middle of an escape sequence too
        text = text.partition("\n")[2] or text
    return plain(text)


def plain(text: str) -> str:
    """Without colours and other escape sequences of a terminal, and without control characters."""
    return "".join(one for one in _ESCAPE.sub("", text) if one in "\n\t" or unicodedata.category(one)[0] != "C")


def _retention(text: str, _: int | None) -> Cause | None:
    found = _RETENTION.search(text)
    if found:
        interval, block = int(found["interval"]), int(found["block"])
        legal = " or ".join(f"{value:,}" for value in legal_neighbours(interval, block))
        return Cause(
            f"the retention interval {interval:,} is not a multiple of this model's scheduler block, {block:,} tokens",
            f"use {legal} for --prefix-cache-retention-interval; every multiple of {block:,} is legal, 'dense' too",
        )
    if "prefix_cache_retention_interval is set but this model has no sliding-window or Mamba" in text:
        return Cause(
            "every KV cache group of this model is full attention and keeps all its blocks: nothing is left to retain",
            "leave the retention interval at its default, or 0",
        )
    return None


def _unknown_flag(text: str, _: int | None) -> Cause | None:
    found = re.search(r"unrecognized arguments: (.+)", text)
    if not found:
        return None
    flags = found[1].strip()
    if "prefix-cache-retention-interval" in flags:
        return Cause(
            "this vLLM release has no --prefix-cache-retention-interval (vLLM 0.29.0 has; 0.28.0 reads the variable "
            "VLLM_PREFIX_CACHE_RETENTION_INTERVAL instead)",
            "use vLLM 0.29.0 or newer, or investigate only the default interval",
        )
    return Cause(f"this server does not know {flags}", "correct the flag, or take it out of --serve-cmd")


def _memory(text: str, returncode: int | None) -> Cause | None:
    less = "lower --max-model-len or --max-num-seqs, or stop whatever else uses the memory"
    if "No available memory for the cache blocks" in text:
        return Cause("the weights leave no memory for the KV cache", f"raise --gpu-memory-utilization; or {less}")
    if re.search(r"CUDA out of memory|OutOfMemoryError|HIP out of memory", text):
        return Cause("the accelerator is out of memory", f"lower --gpu-memory-utilization; or {less}")
    if re.search(r"larger than the available KV cache\s+memory", text):
        return Cause("one request of the full length does not fit the KV cache", "lower --max-model-len")
    if re.search(r"Free memory on device .* is less than desired", text):
        return Cause(
            "something else holds memory of the accelerator (an earlier server?)",
            f"end it (nvidia-smi names it); or {less}",
        )
    if returncode in (-9, 137) or re.search(r"died with exit code -9|exitcode[:=] ?-9|Cannot allocate memory", text):
        return Cause(
            "the kernel ended it with signal 9, most likely because the machine ran out of memory",
            "free memory (dmesg names the process that was ended); for a CPU engine lower VLLM_CPU_KVCACHE_SPACE",
        )
    return None


def _batched_tokens(text: str, _: int | None) -> Cause | None:
    found = re.search(r"max_tokens_per_mm_item \((\d+)\) is larger than max_num_batched_tokens", text)
    if found:
        item = int(found[1])
        return Cause(
            f"one image, video or audio item needs {item:,} tokens in one step, more than --max-num-batched-tokens",
            f"--max-num-batched-tokens {item} or more (or --language-model-only where only text is investigated)",
        )
    return None


def _port(text: str, _: int | None) -> Cause | None:
    if re.search(r"[Aa]ddress already in use|port is already allocated|EADDRINUSE|\[Errno 98\]", text):
        return Cause("another process took the port", "end it, or give another --port (or {port}, to have one chosen)")
    found = re.search(r'container name "?/?([^"\s]+)"? is already in use', text)
    if found:
        return Cause(
            f"a container named {found[1]} is there already", "add --rm to the docker run, and remove the old one"
        )
    return None


def _missing_model(text: str, _: int | None) -> Cause | None:
    found = _MISSING_MODEL.search(text)
    if not found:
        return None
    seen = found[0].strip()[:200]
    if re.search(r"validation error for SpeculativeConfig|config/speculative\.py\"", text):
        return Cause(
            f"the drafter named by --speculative-config can't be found ({seen})",
            'correct its "model", or download it first',
        )
    return Cause(
        f"the model can't be found ({seen})",
        "check its name or folder; a gated model needs HF_TOKEN; with HF_HUB_OFFLINE=1 it must be downloaded already",
    )


_KNOWN: tuple[Callable[[str, int | None], Cause | None], ...] = (
    _retention, _unknown_flag, _batched_tokens, _port, _memory, _missing_model,
)  # fmt: skip


def _unknown(text: str, returncode: int | None, argv: Sequence[str]) -> Cause:
    program = argv[0] if argv else "the program"
    if returncode == 127:
        return Cause(f"{program} was not found", "give its full path, or activate the environment that holds it")
    if returncode == 126:
        return Cause(f"{program} can't be run", "check that it is a program and executable")
    for line in reversed(text.splitlines()):
        found = _ERROR.search(line)
        if found and not any(empty in line for empty in _EMPTY_ERRORS):
            return Cause(_PREFIX.sub("", found[0]).strip()[:300], "read the log; then correct the command")
    return Cause("", "read the log; then correct the command")
