"""``prefixscope check``: one running server, one sentence, one exit code."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from prefixscope.cli.exits import CANNOT_TELL, DONE, FAILED, USAGE
from prefixscope.cli.run import served_name
from prefixscope.completion import PATHS
from prefixscope.errors import Rejected, TargetError, mask

if TYPE_CHECKING:
    from prefixscope.check import Outcome
    from prefixscope.cli.exits import Commands

EXITS = {"reuses": DONE, "short": FAILED, "none": FAILED, "refused": USAGE}
TOKENS = 6_400
MOST = "16 requests and 100,000 prompt tokens (five times --tokens where that is more)"
"""As ``check.budget`` has them; to ask it would load the HTTP library for each command's help."""
GATE = "0.95 of the prompt that is sent twice, or all of it but 192 tokens or three blocks where that is less"
"""As ``check.evidence.allowance`` has it."""


def _check(options: argparse.Namespace) -> int:
    from prefixscope.check import check
    from prefixscope.client import Client

    def say(line: str) -> None:
        print(_shown(f"prefixscope: {line}"), file=sys.stderr, flush=True)

    try:
        with Client(options.url, key_env=options.key_env, told=say) as client:
            found = check(
                client,
                model=options.model or "",
                tokens=options.tokens,
                api=options.api or "",
                min_reuse=options.min_reuse,
                say=say,
            )
    except TargetError as error:
        if options.json:
            kind = "refused" if isinstance(error, Rejected) else "unreachable"
            words = {"sentence": error.what, "cause": kind, "because": error.cause, "remedy": error.remedy}
            print(mask(json.dumps({"verdict_code": "refused", **words, "url": options.url, "sends": []}, indent=2)))
        raise
    print(mask(json.dumps(found.to_json(), indent=2)) if options.json else _text(found))
    return EXITS.get(found.code, CANNOT_TELL)


def _text(found: Outcome) -> str:
    lines = [found.sentence]
    lines += [f"{name}: {text}" for name, text in (("why", found.because), ("remedy", found.remedy)) if text]
    lines.append("")
    for sent in found.evidence.sends:
        numbers = [f"{n:>8,}" if n is not None else "       —" for n in (sent.cached_tokens, sent.prompt_tokens)]
        share = f"{sent.share:>7.1%}" if sent.share is not None and sent.share <= 1 else "      —"
        lines.append(
            f"  {sent.label:18} {numbers[0]} of {numbers[1]} prompt tokens cached {share}  {sent.seconds:7.2f} s"
        )
    cost = found.evidence.spending
    requests = f"{cost.requests} request{'' if cost.requests == 1 else 's'}"
    most = f"{cost.most_requests} and {cost.most_tokens:,}"
    about = "about " if cost.estimated else ""
    lines.append(f"  sent: {requests}, {about}{cost.tokens:,} prompt tokens (never more than {most})")
    for one in found.told:
        lines.append(f"  {one.code}: {one.detail}; {one.remedy}")
    lines += ["", f"verdict: {found.code}"]
    return "\n".join(map(_shown, lines))


def _shown(line: str) -> str:
    """Without keys, and without what a name of the server's could do to a terminal."""
    return mask("".join(one if one.isprintable() else "�" for one in line))


def _share(text: str) -> float:
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: give a number above 0 and up to 1, such as 0.98")
    return value


def _tokens(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() else 0
    if not 16 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a prompt length: give a number of tokens from 16 on")
    return value


def add(commands: Commands) -> None:
    """Its options and its help."""
    command = commands.add_parser(
        "check",
        help="one running server: is what is sent twice reused?",
        description="Send a prompt, the same again and its next turn, under a cache salt of their own, and say in one "
        "sentence what was reused. Three requests where all is well. Where it is not, or no tokenizer answers, further "
        f"ones, each announced with its price before it is sent; all together at most {MOST}.",
        epilog="exit codes: 0 reuses · 1 short or none · 2 usage, unreachable, refused (whichever request of the check "
        "it was; what was measured before it is in the answer) · 3 can't tell (cannot hit, not reported, inconclusive)",
    )
    command.add_argument("url", metavar="URL", help="the server's root, http://host:8000")
    command.add_argument(
        "--model", type=served_name, help="served name to ask, an adapter's too (needed where several are)"
    )
    command.add_argument(
        "--api",
        choices=tuple(PATHS),
        help=f"which API is asked: {', '.join(f'{name} ({path})' for name, path in PATHS.items())}; default: the first "
        "of these that the server has",
    )
    command.add_argument(
        "--min-reuse",
        type=_share,
        metavar="SHARE",
        help="a share of your own, such as 0.98 or 98%%: the second send and the second turn must each take that share "
        f"of their own prompt from the cache (default: both must take {GATE})",
    )
    command.add_argument(
        "--tokens", type=_tokens, default=TOKENS, metavar="N", help=f"prompt length, about (default: {TOKENS})"
    )
    command.add_argument(
        "--key-env", default="", metavar="NAME", help="name of the environment variable that holds the API key"
    )
    command.add_argument("--json", action="store_true", help="the result as JSON on stdout; progress stays on stderr")
    command.set_defaults(call=_check)
