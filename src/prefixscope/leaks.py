"""The last look at a file that people pass on: no value of a secret-looking variable is in it, in any spelling."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from collections.abc import Iterator
from urllib.parse import quote, quote_plus

from prefixscope.errors import ReportError, secrets

_EMBEDDED = re.compile(r"data:[a-z/+-]+;base64,([A-Za-z0-9+/=]+)")


def refuse(text: str, name: str) -> None:
    """Raise where a finished file holds a secret; the error names the variable, never its value.

    Looked for as it is, escaped for HTML, JSON or an address, in base64 at any offset, and inside every file that the
    text embeds, compressed ones too.

    Raises
    ------
    ReportError
        naming every variable whose value is in it.
    """
    texts = [text, *_embedded(text)]
    found = [name for name, value in secrets().items() if any(one in part for one in _spelled(value) for part in texts)]
    if found:
        raise ReportError(
            f"{name} was not written: it would hold the value of {', '.join(found)}",
            cause="what it is made from holds that value in a spelling that was not recognised, or it is a common word",
            remedy="take it out of the run directory or file; if it is no secret, unset that variable for this command",
        )


def _spelled(value: str) -> set[str]:
    """The value in every spelling that a page may give it."""
    plain = json.dumps(value)[1:-1]
    escaped = plain.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return {value, html.escape(value), plain, escaped, quote(value, safe=""), quote_plus(value), *_in_base64(value)}


def _in_base64(value: str) -> Iterator[str]:
    """The characters of its base64 that do not depend on what stands before and after it, at each of three offsets."""
    data = value.encode()
    for offset in range(3):
        start, stop = -(-offset * 8 // 6), (offset + len(data)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            yield encode(b"\0" * offset + data).decode()[start:stop]


def _embedded(text: str) -> Iterator[str]:
    for match in _EMBEDDED.finditer(text):
        data = base64.b64decode(match[1])
        yield (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", "replace")
