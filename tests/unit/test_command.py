"""The command of one setting, built from a template."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from prefixscope.command import capabilities, managed_command, printable
from prefixscope.embedded_command import embedded_command
from prefixscope.errors import ServerError
from prefixscope.setting import Setting

CONFIG = '{"method":"mtp","model":"google/drafter","num_speculative_tokens":3}'
PLAIN = "vllm serve google/gemma --max-model-len 32768"
FULL = (
    f"{PLAIN} --speculative-config '{CONFIG}' --enable-lora --lora-modules a=/x/a b=/x/b --max-lora-rank 8 --port 8100"
)
BARE, MTP, LORA = Setting(drafter=False), Setting(), Setting(lora=True)


def argv(template: str, setting: Setting, port: int = 8130) -> list[str]:
    return list(managed_command(template, setting, port=port).argv)


# --- flags of a setting -------------------------------------------------------------------------------------------


def test_a_template_keeps_everything_a_setting_does_not_name() -> None:
    """With drafter and adapter wanted, the words stay as given, and only a host is added."""
    command = managed_command(FULL, LORA)
    assert list(command.argv[:-2]) == FULL.replace(f"'{CONFIG}'", CONFIG).split(" ")
    assert command.argv[-2:] == ("--host", "127.0.0.1")
    assert (command.port, command.url) == (8100, "http://127.0.0.1:8100")


@pytest.mark.parametrize(
    "given",
    [
        f"--speculative-config '{CONFIG}'",
        f"--speculative-config='{CONFIG}'",
        f"--speculative_config '{CONFIG}'",
        f"-sc '{CONFIG}'",
        "--speculative-config.method mtp --speculative-config.num_speculative_tokens=3",
        "--spec-method mtp --spec-model drafter --spec-tokens 3",
    ],
)
def test_without_a_drafter_every_spelling_of_it_is_taken_out(given: str) -> None:
    """Long, short, joined, underscored and dotted forms of the speculative config disappear with their values."""
    assert capabilities(f"{PLAIN} {given}").has_drafter
    words = argv(f"vllm serve google/gemma {given} --max-model-len 32768", BARE)
    assert words == [*PLAIN.split(), "--port", "8130", "--host", "127.0.0.1"]


def test_without_an_adapter_its_flags_are_taken_out() -> None:
    """``--lora-modules`` goes with all its values, and the flags around it stay."""
    words = argv(f"vllm serve m --enable-lora --lora-modules a=/x b=/y --max-lora-rank 8 -sc '{CONFIG}'", MTP)
    assert words == ["vllm", "serve", "m", "-sc", CONFIG, "--port", "8130", "--host", "127.0.0.1"]


def test_a_positional_after_a_full_flag_is_kept() -> None:
    """A flag takes no more values than it has: the model name after it stays."""
    assert argv("vllm serve --enable-lora m", BARE)[:3] == ["vllm", "serve", "m"]
    assert argv("vllm serve -sc '{}' m", BARE)[:3] == ["vllm", "serve", "m"]


@pytest.mark.parametrize(("interval", "value"), [(0, "0"), (1024, "1024"), ("dense", "None")])
def test_an_interval_is_set_or_replaced(interval: int | str, value: str) -> None:
    """The interval is appended, or takes the place of the given one; dense is spelled ``None``."""
    setting = Setting(drafter=False, interval=interval)
    assert argv(PLAIN, setting)[5:7] == ["--prefix-cache-retention-interval", value]
    given = "vllm serve m --prefix_cache_retention_interval=64 --seed 1"
    assert argv(given, setting)[3:5] == ["--prefix-cache-retention-interval", value]
    assert argv(given, setting).count(value) == 1


def test_no_interval_leaves_the_templates_own() -> None:
    """A setting without an interval neither adds the flag nor takes it away."""
    assert "--prefix-cache-retention-interval" not in argv(PLAIN, BARE)
    assert "--prefix-cache-retention-interval" in argv(f"{PLAIN} --prefix-cache-retention-interval 64", BARE)


def test_a_setting_the_template_cannot_offer_is_refused() -> None:
    """A server is not called "MTP" or "LoRA" when its command has neither."""
    with pytest.raises(ServerError, match="--speculative-config"):
        argv(PLAIN, MTP)
    with pytest.raises(ServerError, match="--lora-modules"):
        argv(f"{PLAIN} -sc '{CONFIG}'", LORA)


def test_what_a_template_offers() -> None:
    """Drafter and adapters are read from the words."""
    assert capabilities(PLAIN) == (False, False)
    assert capabilities(FULL) == (True, True)
    assert capabilities("vllm serve m --enable-lora") == (False, True)


# --- ports and addresses -------------------------------------------------------------------------------------------


def test_a_free_port_is_chosen_where_none_is_given() -> None:
    """Without a port in the template, one is chosen, appended, and named in the URL."""
    command = managed_command(PLAIN, BARE)
    assert command.argv[-4:] == ("--port", str(command.port), "--host", "127.0.0.1")
    assert command.url == f"http://127.0.0.1:{command.port}"


def test_a_placeholder_stands_for_the_port_everywhere() -> None:
    """``{port}`` is replaced wherever it stands, in the stop command too; other braces stay."""
    command = managed_command(
        f"serve.sh {{port}} -sc '{CONFIG}' --port={{port}}", MTP, port=8131, stop_cmd="stop.sh {port}"
    )
    assert command.argv == ("serve.sh", "8131", "-sc", CONFIG, "--port=8131", "--host", "127.0.0.1")
    assert command.stop_argv == ("stop.sh", "8131")


@pytest.mark.parametrize(
    ("host", "url"),
    [("0.0.0.0", "http://127.0.0.1:8100"), ("::", "http://127.0.0.1:8100"), ("::1", "http://[::1]:8100"),
     ("10.0.0.5", "http://10.0.0.5:8100")],
)  # fmt: skip
def test_a_given_host_is_kept_and_reached(host: str, url: str) -> None:
    """A host that means every address is reached on the loopback; any other as it is."""
    command = managed_command(f"{PLAIN} --host {host} --port 8100", BARE)
    assert command.argv[-4:] == ("--host", host, "--port", "8100")
    assert command.url == url


def test_a_port_that_is_none_is_refused() -> None:
    """``--port http`` is an error that names it."""
    with pytest.raises(ServerError, match="--port http"):
        argv(f"{PLAIN} --port http", BARE)


def test_certificates_make_the_url_https() -> None:
    """A server with a certificate is reached over TLS."""
    assert managed_command(f"{PLAIN} --ssl-certfile c --ssl-keyfile k", BARE).url.startswith("https://")


# --- containers ----------------------------------------------------------------------------------------------------

DOCKER = "docker run --rm -dit --gpus all --name v -p 9000:8000 -v /m:/m vllm/vllm-openai:v0.29.0 --model m"


def test_a_container_is_followed_traced_and_stopped(tmp_path: Path) -> None:
    """The client stays in front without a terminal, trace options follow ``run``, and the name says how to stop."""
    trace = {"PYTHONPATH": str(tmp_path / "kit"), "PREFIXSCOPE_TRACE_DIR": str(tmp_path / "trace")}
    command = managed_command(DOCKER, Setting(drafter=False, interval=64), trace_env=trace)
    words = list(command.argv)
    assert words[:2] == ["docker", "run"]
    assert words[2:6] == ["-e", f"PYTHONPATH={tmp_path}/kit", "-e", f"PREFIXSCOPE_TRACE_DIR={tmp_path}/trace"]
    assert words[6:10] == ["-v", f"{tmp_path}/kit:{tmp_path}/kit:ro", "-v", f"{tmp_path}/trace:{tmp_path}/trace"]
    assert words[10:13] == ["--rm", "-i", "--gpus"]
    assert words[-3:] == ["m", "--prefix-cache-retention-interval", "64"]
    assert (command.url, command.port, command.container) == ("http://127.0.0.1:9000", 9000, True)
    assert command.stop_argv == ("docker", "stop", "v")
    assert dict(command.env) == {}


@pytest.mark.parametrize(
    ("options", "url"),
    [("-p 9000:8000", "http://127.0.0.1:9000"), ("-p 127.0.0.1:9000:8000/tcp", "http://127.0.0.1:9000"),
     ("--publish=9001:8000 -p 9000:80", "http://127.0.0.1:9001"), ("-p9000:8000", "http://127.0.0.1:9000"),
     ("-p {port}:8000", "http://127.0.0.1:8130"), ("--network host", "http://127.0.0.1:8130")],
)  # fmt: skip
def test_the_port_of_a_container_is_the_published_one(options: str, url: str) -> None:
    """The URL has the host's side of the mapping; with the host's network the server's own port."""
    command = managed_command(f"podman run --name v {options} image --model m", BARE, port=8130)
    assert command.url == url
    assert ("--port" in command.argv) == ("host" in options)


def test_a_container_that_cannot_be_reached_or_stopped_is_refused() -> None:
    """Without a published port, or with neither a name nor a stop command, the error says what to add."""
    with pytest.raises(ServerError, match=r"add -p \{port\}:8000"):
        managed_command("docker run --name v image", BARE)
    with pytest.raises(ServerError, match="--stop-cmd"):
        managed_command("sudo docker run -p 1:8000 image", BARE)
    command = managed_command("sudo docker run -p 1:8000 image", BARE, stop_cmd="sudo docker stop 'my name'")
    assert command.stop_argv == ("sudo", "docker", "stop", "my name")


# --- environment, refusals, printing --------------------------------------------------------------------------------


def test_the_trace_joins_the_path_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit comes first in PYTHONPATH, and what was there stays; leading NAME=value words are variables."""
    monkeypatch.setenv("PYTHONPATH", "/mine")
    command = managed_command(f"CUDA_VISIBLE_DEVICES=1 {PLAIN}", BARE, trace_env={"PYTHONPATH": "/kit", "T": "/t"})
    assert command.env == {"CUDA_VISIBLE_DEVICES": "1", "PYTHONPATH": "/kit:/mine", "T": "/t"}
    assert command.argv[0] == "vllm"


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        ("", "holds no command: ''"),
        ("  ", "holds no command"),
        ("A=1", "holds no command: 'A=1'"),
        ("vllm serve 'm", "can't be split into words: \"vllm serve 'm\""),
        ("cd /x && vllm serve m", "meant for a shell"),
        ("bash -c 'vllm serve m'", "meant for a shell"),
    ],
)
def test_a_template_that_is_no_command_is_refused(template: str, shown: str) -> None:
    """Empty, unbalanced and shell templates are errors that show what was given."""
    with pytest.raises(ServerError) as caught:
        managed_command(template, BARE)
    assert shown in caught.value.what
    with pytest.raises(ServerError):
        capabilities(template)


def test_a_stop_command_is_checked_too() -> None:
    """An unbalanced stop command is refused before anything starts."""
    with pytest.raises(ServerError, match="--stop-cmd can't be split"):
        managed_command(PLAIN, BARE, stop_cmd="stop 'it")


def test_a_printed_command_can_be_pasted_and_holds_no_secret() -> None:
    """Quotes are right for a shell; keys, tokens and their variables are masked; harmless words are not."""
    template = (
        f"HF_TOKEN=verysecret HF_HUB_OFFLINE=1 {PLAIN} --api-key first-secret second-secret"
        f" --hf-token=third-secret -sc '{CONFIG}' --max-num-batched-tokens 8192 --port 8100"
    )
    text = printable(managed_command(template, MTP))
    assert "secret" not in text
    assert text.startswith("HF_TOKEN=*** HF_HUB_OFFLINE=1 vllm serve google/gemma")
    assert "--api-key *** *** --hf-token=***" in text
    assert f"-sc '{CONFIG}'" in text
    carried = managed_command("docker run --name v -p 1:8000 -e HF_TOKEN=topsecret -e A=1 image", BARE)
    assert "-e 'HF_TOKEN=***' -e A=1 image" in printable(carried)
    assert "--max-num-batched-tokens 8192" in text


# --- embedded -----------------------------------------------------------------------------------------------------


@dataclass
class Model:
    drafter: Path = Path("/models/drafter")
    lora: Path = Path("/models/lora")
    lora_name: str = "tiny-lora"


@dataclass
class Engine:
    model: Model

    def serve_command(self) -> tuple[str, ...]:
        return ("python", "-m", "server", "--model", "/models/target")

    def drafting_flags(self) -> tuple[str, ...]:
        return ("--per-request",)

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": "/overlay", "HF_HUB_OFFLINE": "1"}


def test_the_embedded_command_of_a_full_setting() -> None:
    """Drafter, adapter, interval and dtype become flags of the engine's command; two may run side by side."""
    setting = Setting(lora=True, interval="dense", dtype="bfloat16")
    command = embedded_command(Engine(Model()), setting, port=8132, trace_env={"PYTHONPATH": "/kit"})
    words = list(command.argv)
    assert words[5:8] == ["--dtype", "bfloat16", "--speculative-config"]
    assert json.loads(words[8]) == {"method": "mtp", "model": "/models/drafter", "num_speculative_tokens": 3}
    assert words[9:15] == [
        "--per-request",
        "--enable-lora",
        "--lora-modules",
        "tiny-lora=/models/lora",
        "--max-lora-rank",
        "8",
    ]
    assert words[15:] == ["--prefix-cache-retention-interval", "None", "--host", "127.0.0.1", "--port", "8132"]
    assert command.env == {"PYTHONPATH": "/kit:/overlay", "HF_HUB_OFFLINE": "1"}
    assert not command.alone


def test_the_embedded_command_of_a_bare_setting() -> None:
    """Without drafter, adapter and interval nothing of them is there."""
    command = embedded_command(Engine(Model()), BARE)
    assert not any(
        word.startswith(("--spec", "--per-request", "--lora", "--enable", "--prefix")) for word in command.argv
    )
    assert command.url.endswith(str(command.port))
