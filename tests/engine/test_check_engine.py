"""``prefixscope check`` against real vLLM servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import requests
from bench import Bench, prefixscope

from prefixscope import prompts, usage
from prefixscope.setting import Setting

pytestmark = pytest.mark.engine


@contextmanager
def serving(bench: Bench, setting: Setting) -> Iterator[str]:
    """The address of a server with these settings, left running for the next who wants it."""
    investigation = bench.investigation
    with (
        investigation.stage("trace") as stage,
        investigation.server(setting, stage, keep=True) as (client, _),
    ):
        yield client.url


def test_a_server_that_reuses_passes_under_both_names(bench: Bench) -> None:
    """With MTP, the adapter and interval 1024 a resend and a second turn are reused: exit 0, three requests each."""
    with serving(bench, Setting(lora=True, interval=1024)) as url:
        for name in ("gemma4-small", "gemma4-small-lora"):
            done = prefixscope("check", url, "--model", name, "--tokens", "3000", "--min-reuse", "0.9", "--json")
            answer = json.loads(done.stdout)
            assert (done.returncode, answer["verdict_code"], answer["requests"]) == (0, "reuses", 3), done.stderr
            assert answer["cached_tokens"] == (answer["prompt_tokens"] - 1) // 64 * 64 - 64
            assert answer["second_turn_reuse"] > 0.9


def test_facts_have_their_sources(bench: Bench) -> None:
    """Release, blocks, resolved interval, pool, drafter and ranks are read off a production server's open pages."""
    with serving(bench, Setting(lora=True, interval=1024)) as url:
        facts = {
            f["name"]: f for f in json.loads(prefixscope("check", url, "--tokens", "300", "--json").stdout)["facts"]
        }
    assert facts["vllm version"]["value"] == "0.29.0"
    assert facts["retention interval reported"]["value"] == "1024"
    assert facts["block size reported, tokens"]["value"] == "32"
    assert facts["draft tokens a step"]["value"] == 3
    assert facts["engines behind the address"]["value"] == 1
    assert int(facts["pool, tokens"]["value"]) > 100_000
    assert facts["LoRA names"]["value"] == "gemma4-small-lora"
    assert facts["batched tokens a step, at most"] == {**facts["batched tokens a step, at most"], "value": None}


def test_the_messages_endpoint_counts_under_its_own_names(bench: Bench) -> None:
    """vLLM's /v1/messages leaves the cached part out of input_tokens; read back, prompt and hit are the chat's own."""
    body = {
        "model": "gemma4-small",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "Messages. " + prompts.text(7, 1_500)}],
    }
    with serving(bench, Setting(lora=True, interval=1024)) as url:
        answers = [requests.post(url + "/v1/messages", json=body, timeout=60).json()["usage"] for _ in range(2)]
        chat = requests.post(url + "/v1/chat/completions", json=body, timeout=60).json()["usage"]
    cold, warm = (usage.read(answer) for answer in answers)
    assert cold.prompt_tokens == warm.prompt_tokens == usage.read(chat).prompt_tokens
    assert (cold.cached_tokens, warm.cached_from) == (0, "cache_read_input_tokens")
    assert warm.cached_tokens == usage.read(chat).cached_tokens
    assert warm.cached_tokens


@pytest.mark.parametrize("api", ["completions", "messages"])
def test_another_api_gives_the_same_verdict(bench: Bench, api: str) -> None:
    """vLLM's own /v1/completions and /v1/messages reuse a resend to the same block as its chat does."""
    with serving(bench, Setting(lora=True, interval=1024)) as url:
        done = prefixscope("check", url, "--api", api, "--model", "gemma4-small", "--tokens", "1500", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict_code"], answer["api"]) == (0, "reuses", api), done.stderr
    assert answer["cached_tokens"] == (answer["prompt_tokens"] - 1) // 64 * 64 - 64
    assert 1_300 < answer["prompt_tokens"] < 1_700
    assert answer["second_turn_reuse"] > 0.8


def test_a_prompt_below_the_minimum_is_told_apart(bench: Bench) -> None:
    """With MTP no prompt of up to 128 tokens hits: exit 3, and the lengths between which reuse begins."""
    with serving(bench, Setting()) as url:
        done = prefixscope("check", url, "--tokens", "100", "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["verdict_code"]) == (3, "cannot hit"), done.stderr
    hits = [s for s in answer["sends"] if s["series"] == "length" and s["cached_tokens"]]
    misses = [s for s in answer["sends"] if s["index"] == 2 and not s["cached_tokens"]]
    # 129 to 192 tokens hit two blocks less than the two they fill: nothing.
    assert max(s["prompt_tokens"] for s in misses) <= 192 < min(s["prompt_tokens"] for s in hits)


def test_the_incident_is_named_with_its_release(bench: Bench) -> None:
    """At the default interval the second send hits 0 and the third does: exit 1, the pull request, the flag."""
    with serving(bench, Setting()) as url:
        done = prefixscope("check", url, "--tokens", "2000")
    assert done.returncode == 1, done.stderr
    assert "reuses nothing of what is sent twice: 0 of" in done.stdout
    assert "the third send reuses 1," in done.stdout
    assert "vllm#53945" in done.stdout
    assert "--prefix-cache-retention-interval" in done.stdout
    assert "0.30.0" in done.stdout
    assert "a third time" in done.stderr
