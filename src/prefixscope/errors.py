"""Everything prefixscope raises on purpose.

PrefixscopeError
├── TargetError            the server under investigation
│   ├── Unreachable          no answer at the address
│   ├── Rejected             it answered and said no (401, 404, 413, 429 …)
│   └── Unsupported          it can't do what the investigation needs
├── ServerError            a server that prefixscope itself starts
│   ├── StartTimeout         alive, never ready
│   └── Exited               ended before or while it was needed
├── EngineError            installing or finding an embedded engine
├── TraceError             an unreadable or unknown trace
├── ReplayError            the scheduler replay
├── NotebookError          a notebook failed, or its parameters are wrong
├── RunError               a run directory that can't be used
└── ReportError            a report that can't be rendered
    └── Unwritable           nor written to the place that was named

Every message has three parts: what failed, with the values seen; the likely cause; the next command or flag.
"""

from __future__ import annotations

import os
import re

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH(?!OR)", re.IGNORECASE)
_SECRET_TEXT = re.compile(
    r"((?i:bearer\s+|--api-key[= ]\s*|api[-_]?key[\"']?\s*[:=]\s*[\"']?)|\bhf_|\bsk-)[^\s\"',;]{6,}"
)
_URL_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+(?=@)")
_known: set[str] = set()


def remember_secret(value: str) -> None:
    """From now on :func:`mask` hides this value, whatever the variable that held it is called."""
    if len(value) >= 6:  # a shorter one would take ordinary words with it
        _known.add(value)


def secrets() -> dict[str, str]:
    """What must not leave this process, by name: variables that look like a secret's, and what was remembered."""
    named = {name: value for name, value in os.environ.items() if len(value) >= 8 and _SECRET_NAME.search(name)}
    return {**named, **{f"a key given to prefixscope ({place})": one for place, one in enumerate(sorted(_known), 1)}}


def mask(text: str) -> str:
    """The same text with every key that this process knows of, or that looks like one, replaced by ``***``."""
    for value in secrets().values():
        text = text.replace(value, "***")
    return _URL_PASSWORD.sub(r"\1***", _SECRET_TEXT.sub(r"\1***", text))


class PrefixscopeError(Exception):
    """What failed, the likely cause, and what to do next.

    Parameters
    ----------
    what : what failed, with the values seen.
    cause : the likely cause; empty where nobody can say.
    remedy : the next command or flag.
    detail : more to read (last log lines, a server's body), printed last.
    """

    def __init__(self, what: str, *, cause: str = "", remedy: str = "", detail: str = "") -> None:
        self.what, self.cause, self.remedy, self.detail = mask(what), mask(cause), mask(remedy), mask(detail)
        super().__init__(str(self))

    def __str__(self) -> str:
        parts = [self.what]
        if self.cause:
            parts.append(f"Likely cause: {self.cause}")
        if self.remedy:
            parts.append(f"Next: {self.remedy}")
        if self.detail:
            parts.append(self.detail)
        return "\n".join(parts)

    def _render_traceback_(self) -> list[str]:
        """What IPython shows of it: the words, not forty frames of a notebook's machinery (``%tb`` has those)."""
        return f"{type(self).__name__}: {self}".splitlines()


class TargetError(PrefixscopeError):
    """The server under investigation."""


class Unreachable(TargetError):
    """No answer at the address."""


class Rejected(TargetError):
    """The server answered and said no.

    ``status`` is the HTTP status; 0 where the answer had none (a malformed body). ``lacks`` is what a 404 says isn't
    there, ``path`` or ``model``; empty where it is no 404.
    """

    def __init__(
        self, what: str, *, status: int = 0, cause: str = "", remedy: str = "", detail: str = "", lacks: str = ""
    ) -> None:
        self.status, self.lacks = status, lacks
        super().__init__(what, cause=cause, remedy=remedy, detail=detail)


class Unsupported(TargetError):
    """The target can't do what the investigation needs."""


class ServerError(PrefixscopeError):
    """A server that prefixscope itself starts."""


class StartTimeout(ServerError):
    """Alive, never ready."""


class Exited(ServerError):
    """Ended before or while it was needed."""


class EngineError(PrefixscopeError):
    """Installing or finding an embedded engine."""


class TraceError(PrefixscopeError):
    """An unreadable or unknown trace."""


class ReplayError(PrefixscopeError):
    """The scheduler replay."""


class NotebookError(PrefixscopeError):
    """A notebook failed, or its parameters are wrong."""


class RunError(PrefixscopeError):
    """A run directory that can't be used."""


class ReportError(PrefixscopeError):
    """A report that can't be rendered."""


class Unwritable(ReportError):
    """A place that was named, or the cache folder, can't be written to."""
