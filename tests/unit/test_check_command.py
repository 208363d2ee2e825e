"""``prefixscope check``: options, exit codes, and what stands on the screen."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from checked import asked, run
from stub import CHAT, METRICS, Reply, StubServer, error

from prefixscope import cli
from prefixscope.errors import TargetError, Unreachable

# --- the command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "code"),
    [({}, 0), ({"sends": 2}, 1), ({"reports_cached": False}, 3), ({"block": 4_000}, 3), ({"prefix_caching": False}, 1)],
)
def test_the_exit_code_is_the_verdicts(stub: StubServer, change: dict[str, Any], code: int) -> None:
    """0 reuses · 1 short or none · 3 can't tell."""
    for name, value in change.items():
        setattr(stub, name, value)
    assert run(stub) == code


def test_the_answer_is_a_sentence_the_numbers_and_the_verdict(
    stub: StubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line says it, then come the sends, and the verdict last; progress goes to stderr."""
    stub.sends = 2
    run(stub)
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith("tiny (vLLM 0.29.0) reuses nothing of what is sent twice: 0 of 1,")
    assert lines[-1] == "verdict: none"
    assert sum("prompt tokens cached" in line for line in lines) == 3
    assert "sending the prompt a third time" in shown.err


def test_the_answer_is_json_for_scripts(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """``--json`` gives verdict, numbers, sends, facts with sources and findings; unknown numbers are null."""
    assert run(stub, "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict_code"] == "reuses"
    assert answer["requests"] == 3
    assert 0.9 < answer["reuse"] < 1
    assert 0.9 < answer["second_turn_reuse"] < 1
    assert answer["counters"] is None
    assert all(fact["source"] for fact in answer["facts"])


@pytest.mark.parametrize("share", ["0", "1.5", "-1", "much", "120%"])
def test_a_share_outside_its_range_is_refused(stub: StubServer, share: str) -> None:
    """``--min-reuse`` takes a number above 0 and up to 1."""
    with pytest.raises(SystemExit) as caught:
        run(stub, "--min-reuse", share)
    assert caught.value.code == 2


def test_several_models_are_listed_to_choose_from(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Two different models and no --model: exit 2, nothing sent, and the names."""
    stub.always("/v1/models", Reply(body={"data": [{"id": "a", "root": "x"}, {"id": "b", "root": "y"}]}))
    assert cli.main(["check", stub.url]) == 2
    assert "--model: a, b" in capsys.readouterr().err
    assert stub.sent() == []


def test_aliases_of_one_model_are_one(stub: StubServer) -> None:
    """Several served names with one root need no choice."""
    stub.always("/v1/models", Reply(body={"data": [{"id": "tiny", "root": "x"}, {"id": "also", "root": "x"}]}))
    assert cli.main(["check", stub.url, "--tokens", "600"]) == 0
    assert {body["model"] for body in stub.sent()} == {"tiny"}


def test_an_adapter_is_asked_by_its_name(stub: StubServer) -> None:
    """``--model`` takes a LoRA name; without one the base model is asked."""
    assert cli.main(["check", stub.url, "--tokens", "600", "--model", "tiny-lora"]) == 0
    assert {body["model"] for body in stub.sent()} == {"tiny-lora"}
    assert cli.main(["check", stub.url, "--tokens", "600"]) == 0
    assert stub.sent()[-1]["model"] == "tiny"


def test_a_wrong_name_lists_the_served_ones(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is not served is exit 2 with the names that are."""
    assert cli.main(["check", stub.url, "--model", "tinny"]) == 2
    assert "tiny, tiny-lora" in capsys.readouterr().err


def test_nobody_there_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A closed port is unreachable, in words."""
    assert cli.main(["check", "http://127.0.0.1:9"]) == 2
    assert "connection refused" in capsys.readouterr().err


def test_a_key_never_shows(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key named by --key-env is sent, and neither the answer nor an error of the server shows it."""
    secret = "quite-a-secret-value-42"
    monkeypatch.setenv("TINY_KEY", secret)
    stub.api_key = secret
    stub.more_metrics = ["# fine"]
    assert run(stub, "--key-env", "TINY_KEY", "--json") == 0
    stub.always(CHAT, error(400, f"bad request with {secret}"))
    assert run(stub, "--key-env", "TINY_KEY") == 2
    shown = capsys.readouterr()
    assert secret not in shown.out + shown.err


def test_a_servers_names_do_nothing_to_the_terminal(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in a release or a model's name are shown as marks."""
    stub.version, stub.model = "0.29.0\x1b[2J", "ti\x1b]0;x\x07ny"
    stub.lora = None
    assert cli.main(["check", stub.url, "--tokens", "600"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_metrics_that_fail_in_the_middle_do_no_harm(stub: StubServer) -> None:
    """A page that is gone at the end of the check leaves the verdict as it is."""
    stub.reply_once(METRICS, Reply(body="# HELP a b\nvllm:prefix_cache_queries_total 1\n"))
    stub.has_metrics = False
    assert asked(stub).code == "reuses"


def test_the_exceptions_are_the_packages_own(stub: StubServer) -> None:
    """A caller catches TargetError, and nothing else."""
    stub.always("/v1/models", Reply(close=True))
    with pytest.raises((TargetError, Unreachable)):
        asked(stub)


def test_a_refusal_is_json_too(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """A script that asked for JSON gets it when the server refuses, with the reason and a next step."""
    stub.always(CHAT, error(401, "no key"))
    assert cli.main(["check", stub.url, "--model", "tiny", "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert found["verdict_code"] == "refused"
    assert "401" in found["because"]
    assert "--key-env" in found["remedy"]
    assert {fact["name"]: fact["value"] for fact in found["facts"]}["vllm version"] == "0.29.0"


def test_a_server_that_does_not_list_its_models_is_json_too(
    stub: StubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same keys hold what failed before anything could be asked."""
    stub.always("/v1/models", error(401, "no key"))
    assert cli.main(["check", stub.url, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict_code"], found["cause"], found["sends"]) == ("refused", "refused", [])
    assert "401" in found["sentence"]
    assert "--key-env" in found["remedy"]


def test_an_empty_name_is_an_unset_variable(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """--model '' is refused in words before anything is sent."""
    with pytest.raises(SystemExit) as caught:
        cli.main(["check", stub.url, "--model", ""])
    assert caught.value.code == 2
    assert "variable of the shell is not set" in capsys.readouterr().err
    assert stub.requests == []


def test_adapters_alone_are_listed_to_choose_from(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Several adapters and no base model leave open which is meant; one base with several adapters does not."""
    adapters = [{"id": name, "parent": "base"} for name in ("lora-a", "lora-b")]
    stub.always("/v1/models", Reply(body={"data": adapters}))
    assert cli.main(["check", stub.url]) == 2
    shown = capsys.readouterr().err
    assert "2 adapters and no base model" in shown
    assert "--model: lora-a, lora-b" in shown
    stub.always("/v1/models", Reply(body={"data": [{"id": "tiny"}, *adapters]}))
    assert cli.main(["check", stub.url, "--tokens", "300"]) == 0


def test_a_server_can_not_write_to_the_terminal(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape codes in an error's words are shown as what they are not."""
    stub.always(CHAT, error(400, "\x1b[2J\x1b]0;pwned\x07"))
    assert cli.main(["check", stub.url, "--model", "tiny"]) == 2
    stub.always("/v1/models", error(400, "\x1b[2J\x1b]0;pwned\x07"))
    assert cli.main(["check", stub.url, "--model", "tiny"]) == 2
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    assert "pwned" in shown.out


@pytest.mark.parametrize(("share", "cause"), [("0.95", ""), ("0.995", "second-turn"), ("0.999", "below-wanted-share")])
def test_a_share_beyond_block_rounding_has_one_remedy(
    stub: StubServer, capsys: pytest.CaptureFixture[str], share: str, cause: str
) -> None:
    """A healthy server passes the README's gate; beyond what whole blocks allow at this length, the length helps."""
    code = cli.main(["check", stub.url, "--model", "tiny", "--tokens", "6400", "--min-reuse", share, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["cause"] or "") == (int(bool(cause)), cause)
    if cause:
        most = min(sent["cached_tokens"] / sent["prompt_tokens"] for sent in found["sends"][1:])
        told = f"{math.floor(1000 * most) / 10:.1f} %"
        assert 0.95 < most < float(share)
        assert f"at this length {told} is the most" in found["because"]
        assert found["remedy"] == f"use a longer prompt (--tokens), or a lower --min-reuse ({told} at most)"


def test_a_share_is_told_as_it_was_asked_for(stub: StubServer, capsys: pytest.CaptureFixture[str]) -> None:
    """99.9 % is not rounded to 100 %."""
    assert cli.main(["check", stub.url, "--model", "tiny", "--tokens", "600", "--min-reuse", "0.999"]) == 1
    assert "at least 99.9 % is wanted" in capsys.readouterr().out
