"""The command that starts a server with one setting, built from a template and nothing else.

A template has the form that ``vllm bench sweep serve --serve-cmd`` takes, ``vllm serve MODEL --flag …``, or is a
``docker run …`` or ``podman run …``. For each setting some flags are taken out and some are set; the rest stays.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from prefixscope import container
from prefixscope.errors import ServerError, mask
from prefixscope.flags import Flags, flag_name
from prefixscope.processes import free_port
from prefixscope.setting import Interval, Setting

DEFAULT_PORT = 8000
INTERVAL_FLAG = "--prefix-cache-retention-interval"
# vLLM 0.29.0, EngineArgs.add_cli_args: every spelling of "speculate", and what configures adapters.
DRAFTER_FLAGS = ("--speculative-config", "-sc", "--spec-method", "--spec-model", "--spec-tokens")
LORA_FLAGS = (
    "--enable-lora", "--lora-modules", "--max-lora-rank", "--max-loras", "--max-cpu-loras", "--lora-dtype",
)  # fmt: skip
_SHELLS = {"sh", "bash", "dash", "zsh", "ksh"}
_SHELL_WORDS = {"&&", "||", "|", ";", "&", ">", ">>", "2>&1"}
_SECRET_FLAGS = ("--api-key", "--hf-token", "--ssl-keyfile-password")
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCommand:
    """Everything needed to start one server.

    ``env`` holds only what is added to the environment; inherited variables that begin with one of ``drops`` are not
    handed on. ``alone`` says that no second server fits beside it (one
    fills its accelerator, or its port is fixed); ``start_timeout_s`` how long it may take until it is ready.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    drops: tuple[str, ...] = ()
    url: str
    port: int
    stop_argv: tuple[str, ...] | None = None
    container: bool = False
    alone: bool = True
    start_timeout_s: float = 600.0


class Capabilities(NamedTuple):
    """What a template can offer, as far as its text shows: a ``--config`` file is not read."""

    has_drafter: bool
    has_lora: bool


def managed_command(
    serve_cmd: str,
    setting: Setting,
    *,
    port: int | None = None,
    stop_cmd: str | None = None,
    trace_env: Mapping[str, str] | None = None,
) -> ServerCommand:
    """The user's command with this setting's flags.

    ``{port}`` anywhere stands for the port; else a ``--port`` of the template is kept; else one is appended.
    ``port`` None takes a free one where one is needed. An interval of None leaves the template's own.

    Raises
    ------
    ServerError
        where the command is empty, can't be split, is meant for a shell, or can't offer the setting.
    """
    variables, words = _split(serve_cmd, "--serve-cmd")
    trace_env = trace_env or {}
    place = container.run_index(words)
    flags = Flags(words)
    _require(flags, setting, serve_cmd)
    if not setting.drafter:
        flags.remove(*DRAFTER_FLAGS)
    if not setting.lora:
        flags.remove(*LORA_FLAGS)
    if setting.interval is not None:
        flags.set(INTERVAL_FLAG, interval_value(setting.interval))
    chosen = _LazyPort(port)
    flags.words = [_with_port(word, chosen) for word in flags.words]
    stop = [_with_port(word, chosen) for word in _split(stop_cmd, "--stop-cmd")[1]] if stop_cmd else None
    if place is None:
        number = _port_of(flags, chosen)
        if flags.value("--host") is None:
            flags.set("--host", "127.0.0.1")
        host = flags.value("--host") or ""
        env = joined({**variables, **trace_env}, os.environ)
    else:
        host, number = container.address(flags, lambda: _port_of(flags, chosen), DEFAULT_PORT)
        words = container.foreground(flags.words, place)
        flags.words = words[: place + 1] + container.options(trace_env) + words[place + 1 :]
        stop = stop or container.stop_words(flags.words, place)
        env = variables
    scheme = "https" if flags.has("--ssl-certfile") or flags.has("--ssl-keyfile") else "http"
    return ServerCommand(
        argv=tuple(flags.words), env=env, url=f"{scheme}://{_reachable(host)}:{number}", port=number,
        stop_argv=tuple(stop) if stop else None, container=place is not None,
    )  # fmt: skip


def capabilities(serve_cmd: str) -> Capabilities:
    """Whether the template speculates, and whether it serves adapters."""
    flags = Flags(_split(serve_cmd, "--serve-cmd")[1])
    return Capabilities(flags.has(*DRAFTER_FLAGS), flags.has("--enable-lora"))


def given(serve_cmd: str) -> tuple[dict[str, str], dict[str, str]]:
    """The variables that the template sets, in front of the command or with docker's ``-e``, and its flags' values."""
    variables, words = _split(serve_cmd, "--serve-cmd")
    flags = Flags(words)
    for text in (*flags.values("-e"), *flags.values("--env")):
        name, equals, value = text.partition("=")
        if equals:
            variables[name] = value
    names = {flag for word in words if (flag := flag_name(word)) and flag.startswith("--")}
    return variables, {flag: last for flag in names if (last := flags.value(flag)) is not None}


def interpreter(serve_cmd: str) -> tuple[str, Mapping[str, str]] | None:
    """The Python that the template's vLLM runs in, and the variables it sets; None where the text does not show it."""
    variables, words = _split(serve_cmd, "--serve-cmd")
    if container.run_index(words) is not None:
        return None
    program = shutil.which(words[0], path=variables.get("PATH"))
    if program is None:
        return None
    if not Path(words[0]).name.startswith("python"):
        # A console script names its interpreter in its first line.
        with Path(program).open("rb") as script:
            first = script.readline(256).decode("utf-8", "replace").strip()
        program = first[2:].strip() if first.startswith("#!") else ""
    return (program, variables) if Path(program).name.startswith("python") else None


def interval_value(interval: Interval) -> str:
    """What the flag takes: vLLM 0.29.0 spells dense retention ``None``."""
    return "None" if interval == "dense" else str(interval)


def printable(command: ServerCommand) -> str:
    """The command as a shell would take it, variables first, secrets masked."""
    shown = [
        f"{name}={shlex.quote(_masked(f'{name}={value}')[len(name) + 1 :])}" for name, value in command.env.items()
    ]
    hide = False
    for word in command.argv:
        name, equals, _ = word.partition("=")
        secret_flag = name.replace("_", "-") in _SECRET_FLAGS
        # The values of a secret flag are the words up to the next flag.
        hide = (hide and not word.startswith("-")) or (secret_flag and not equals)
        if secret_flag:
            shown.append(f"{name}=***" if equals else word)
        else:
            shown.append("***" if hide else shlex.quote(_masked(word)))
    return " ".join(shown).replace("'***'", "***")


def _masked(word: str) -> str:
    """One word without secrets. A variable's name is no secret, and says whether its value is one."""
    found = re.match(r"[A-Za-z_]\w*=", word)
    name = found[0] if found else ""
    return name + ("***" if name and _SECRET_NAME.search(name) else mask(word[len(name) :]))


def _split(text: str, option: str) -> tuple[dict[str, str], list[str]]:
    """Leading ``NAME=value`` words, and the command."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ServerError(
            f"{option} can't be split into words: {text!r} ({error})",
            cause="a quote without its partner; JSON needs single quotes around it",
            remedy=f"quote it like this: {option} \"vllm serve MODEL --speculative-config '{{…}}'\"",
        ) from error
    variables = {}
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    if not words:
        raise ServerError(
            f"{option} holds no command: {text!r}", remedy=f'give the whole command: {option} "vllm serve MODEL …"'
        )
    shell = _SHELL_WORDS & set(words)
    scripts = [word for word, after in itertools.pairwise(words) if _is_shell(word, after)]
    if option == "--serve-cmd" and (shell or scripts):
        raise ServerError(
            f"{option} is meant for a shell: {text!r} ({', '.join(sorted(shell) or scripts)})",
            cause="flags are added and removed word by word, and no shell runs the command",
            remedy='give the server\'s own command; put what must happen first into a script that ends with: exec "$@"',
        )
    return variables, words


def _is_shell(word: str, after: str) -> bool:
    return Path(word).name in _SHELLS and bool(re.fullmatch(r"-[a-z]*c", after))


def _require(flags: Flags, setting: Setting, serve_cmd: str) -> None:
    """Refuse to call a server what it is not. A configuration file may hold what the command line does not show."""
    if flags.has("--config"):
        return
    if setting.drafter and not flags.has(*DRAFTER_FLAGS):
        raise ServerError(
            f"a setting with a drafter, and none in --serve-cmd {serve_cmd!r}",
            remedy="add --speculative-config '{…}' to the command, or ask for settings without a drafter",
        )
    if setting.lora and not flags.has("--enable-lora"):
        raise ServerError(
            f"a setting with a LoRA adapter, and none in --serve-cmd {serve_cmd!r}",
            remedy="add --enable-lora --lora-modules NAME=PATH to the command, or ask for settings without an adapter",
        )


class _LazyPort:
    """A port that is looked for only where it is needed, and then stays."""

    def __init__(self, port: int | None) -> None:
        self.port = port

    def __call__(self) -> int:
        self.port = free_port() if self.port is None else self.port
        return self.port


def _with_port(word: str, port: Callable[[], int]) -> str:
    return word.replace("{port}", str(port())) if "{port}" in word else word


def _port_of(flags: Flags, port: Callable[[], int]) -> int:
    """The template's port, or a chosen one, which is then appended."""
    given = flags.value("--port")
    if given is None:
        flags.set("--port", str(port()))
        return port()
    if not given.isdigit() or not 0 < int(given) < 65_536:
        raise ServerError(f"--port {given} is not a port", remedy="give a number from 1 to 65535, or {port}")
    return int(given)


def _reachable(host: str) -> str:
    """Where a client on this machine finds a server that listens on ``host``."""
    host = host.strip("[]")
    if host in ("", "0.0.0.0", "::", "*"):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def joined(added: Mapping[str, str], present: Mapping[str, str]) -> dict[str, str]:
    """``added``, with its PYTHONPATH in front of the one that is there: neither may hide the other."""
    joined = dict(added)
    paths = [value for value in (added.get("PYTHONPATH"), present.get("PYTHONPATH")) if value]
    if "PYTHONPATH" in added and paths:
        joined["PYTHONPATH"] = os.pathsep.join(paths)
    return joined
