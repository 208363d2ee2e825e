"""The speculation stage on stub servers: what it sends, in which order, what it keeps, and what it doubts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stub import CHAT, StubServer, default_answer, error

from prefixscope import frames, speculation
from prefixscope.errors import RunError
from prefixscope.headroom import headroom, one_sequence
from prefixscope.investigation import Investigation
from prefixscope.trace import Group, Header

Attach = Callable[..., Investigation]
FEW: dict[str, Any] = {
    "shapes": ["prose", "code"],
    "documents": 1,
    "tokens": 300,
    "answer_tokens": 12,
    "load": [900, 50, 0.5],
}


@pytest.fixture
def other() -> Iterator[StubServer]:
    """A second server, without a drafter."""
    with StubServer() as server:
        server.lora = None
        yield server


@pytest.fixture(autouse=True)
def _drafting(stub: StubServer) -> None:
    stub.lora = None
    stub.draft, stub.accepts = 3, lambda step: 2


def of_kind(investigation: Investigation, kind: str) -> list[dict[str, Any]]:
    return [row for row in investigation.run.rows("speculation") if row["kind"] == kind]


def streamed(server: StubServer) -> list[dict[str, Any]]:
    return [body for body in server.sent() if body.get("stream")]


def test_one_server_shows_what_it_accepts(attach: Attach, stub: StubServer) -> None:
    """Every prompt is streamed twice under salts of its own, greedily; the score of the answer is the counters'."""
    investigation = attach()
    table = speculation.run(investigation, **FEW)
    assert len(table) == 4
    assert set(table["label"]) == {"as served"}
    assert table["acceptance"].between(0.5, 0.7).all()
    assert table["agree"].all()
    assert (table["chunks"] < table["completion_tokens"]).all()
    sent = streamed(stub)
    assert len({body["cache_salt"] for body in sent}) == 4
    assert all(body["temperature"] == 0 and body["stream_options"] == {"include_usage": True} for body in sent)
    assert {row["pair"] for row in of_kind(investigation, "pair")} == {"A / A"}
    assert not of_kind(investigation, "resend"), "one server alone has no trade to weigh"


def test_two_servers_take_turns(attach: Attach, stub: StubServer, other: StubServer) -> None:
    """A, B, B, A: each request has its partner next to it, and both are asked the same text."""
    investigation = attach()
    table = speculation.run(investigation, other=other.url, **FEW)
    assert table["arm"].tolist() == ["A", "B", "B", "A", "A", "B", "B", "A"]
    assert table["interleaved"].all()
    assert [body["messages"] for body in streamed(stub)] == [body["messages"] for body in streamed(other)]
    assert table.groupby("arm")["acceptance"].apply(lambda part: part.notna().all()).to_dict() == {
        "A": True,
        "B": False,
    }
    pairs = of_kind(investigation, "pair")
    assert len(pairs) == 6
    assert all(row["identical"] for row in pairs)


def test_where_one_server_fits_the_arms_follow_each_other(
    attach: Attach, stub: StubServer, other: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that runs alone is asked everything before the next one starts, and the rows say so."""
    monkeypatch.setattr(Investigation, "side_by_side", False)
    table = speculation.run(attach(), other=other.url, **FEW)
    assert table["arm"].tolist() == list("AAAABBBB")
    assert not table["interleaved"].any()
    assert frames.effect(table, "tokens_per_s") is not None


def test_a_long_prompt_is_resent_on_either_server(attach: Attach, stub: StubServer, other: StubServer) -> None:
    """Cold, again, and once more under one salt, with the hit that each server gives."""
    other.prefix_caching = False
    investigation = attach()
    speculation.run(investigation, other=other.url, **FEW)
    table = frames.resends(investigation.path)
    assert table[table["arm"] == "A"]["cached_tokens"].tolist() == [0, 896, 896]
    assert table[table["arm"] == "B"]["cached_tokens"].tolist() == [0, 0, 0]
    assert set(table["tokens"]) == {900}
    for row in of_kind(investigation, "resend"):
        assert row["metrics"]["queries"] == row["prompt_tokens"], "what was streamed before it is not counted in"


def test_the_resends_of_a_long_prompt_are_in_the_plan(attach: Attach, stub: StubServer, other: StubServer) -> None:
    """Progress counts three sends more per arm, and is done when nothing is left to send."""
    investigation = attach()
    speculation.run(investigation, other=other.url, **FEW)
    said = json.loads(next(investigation.path.rglob("progress*.json")).read_text())
    answers, resends = len(of_kind(investigation, "generation")), len(of_kind(investigation, "resend"))
    assert resends == 6
    assert (said["step"], said["steps"]) == (answers + resends, answers + resends)


def test_what_is_there_is_not_asked_again(attach: Attach, stub: StubServer, other: StubServer) -> None:
    """A second run sends nothing; more documents add only theirs."""
    speculation.run(attach(), other=other.url, **FEW)
    sent, rows = len(stub.sent()) + len(other.sent()), len(attach().run.rows("speculation"))
    speculation.run(attach(), other=other.url, **FEW)
    assert (len(stub.sent()) + len(other.sent()), len(attach().run.rows("speculation"))) == (sent, rows)
    table = speculation.run(attach(), other=other.url, **{**FEW, "documents": 2})
    assert len(table) == 16


def test_counters_that_others_moved_are_a_warning_and_not_a_number(attach: Attach, stub: StubServer) -> None:
    """With other traffic the counters are flagged; what the answers say of themselves stands, or nothing does."""
    stub.others, stub.reports_drafting = 5, False
    investigation = attach()
    table = speculation.run(investigation, **FEW)
    assert table["disturbed"].all()
    assert table["acceptance"].isna().all()
    codes = {warning["code"]: warning["detail"] for warning in investigation.run.manifest["warnings"]}
    assert "during 4 of 4 requests" in codes["counters-moved-by-others"]


def test_sources_that_part_are_a_warning(attach: Attach, stub: StubServer) -> None:
    """An answer whose own score is not what the counters say is named."""

    def wrong(event: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        score = event.get("metrics", {}).get("speculative_decoding")
        return (
            event if score is None else {**event, "metrics": {"speculative_decoding": {**score, "num_spec_steps": 1}}}
        )

    stub.edit = wrong
    investigation = attach()
    assert not speculation.run(investigation, **FEW)["agree"].any()
    assert "sources-disagree" in {warning["code"] for warning in investigation.run.manifest["warnings"]}


def test_a_server_without_metrics_is_measured_all_the_same(attach: Attach, stub: StubServer) -> None:
    """No counters and no score of the answer's own: rates are there, speculation is not reported."""
    stub.has_metrics, stub.reports_drafting = False, False
    table = speculation.run(attach(), **FEW)
    assert table["tokens_per_s"].notna().all()
    assert table["source"].isna().all()
    assert table["disturbed"].isna().all()


def test_usage_that_a_gateway_drops_is_a_warning(attach: Attach, stub: StubServer) -> None:
    """Without usage no rate is claimed, and a warning says why."""
    stub.edit = lambda event, request: {key: value for key, value in event.items() if key != "usage"}
    investigation = attach()
    assert speculation.run(investigation, **FEW)["tokens_per_s"].isna().all()
    assert "no-usage" in {warning["code"] for warning in investigation.run.manifest["warnings"]}


def test_a_refused_request_is_a_row(attach: Attach, stub: StubServer) -> None:
    """One refusal is a failed row with the server's words; the other requests are made, and later it is tried again."""
    refused = error(500, "boom")

    def refuse_the_second(event: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        if len(streamed(stub)) == 1:
            stub.reply_once(CHAT, *([] if stub._once.get(CHAT) else [refused]))
        return event

    stub.edit = refuse_the_second
    investigation = attach()
    table = speculation.run(investigation, **FEW)
    assert table["status"].tolist() == ["ok", "failed", "ok", "ok"]
    assert "boom" in table["error"].iloc[1]
    assert investigation.run.manifest["stages"]["speculation"]["status"] == "partial"
    again = speculation.run(attach(), **FEW)
    assert again["status"].tolist()[4:] == ["ok"]


def test_a_noisy_server_differs_from_itself(attach: Attach, stub: StubServer) -> None:
    """Where a server answers differently when asked twice, its own pairs say so."""
    stub.answer = lambda ids, salt, number: [*default_answer(ids, salt, number)[:4], *f"{number:08d}".encode()]
    investigation = attach()
    speculation.run(investigation, **FEW)
    assert [row["identical"] for row in of_kind(investigation, "pair")] == [False, False]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"shapes": ["poem"]}, "'poem'"),
        ({"shapes": []}, "prose, code"),
        ({"documents": 0}, "documents=0"),
        ({"repeats": 0}, "repeats=0"),
        ({"answer_tokens": 1}, "two tokens or more"),
        ({"load": [900, 50, 2]}, "reuse of 2"),
        ({"tokens": 40_000}, "16,384"),
    ],
    ids=str,
)
def test_parameters_that_make_no_sense_are_refused(attach: Attach, changes: dict[str, Any], said: str) -> None:
    """An unknown shape, nothing to ask, one token, more than the context: refused with the value, no answer kept."""
    investigation = attach()
    with pytest.raises(RunError, match=said):
        speculation.run(investigation, **{**FEW, **changes})
    assert not of_kind(investigation, "generation")


def test_a_load_longer_than_the_context_leaves_out_the_trade(
    attach: Attach, stub: StubServer, other: StubServer
) -> None:
    """Everything else is measured, and a warning names the length that would fit."""
    investigation = attach()
    table = speculation.run(investigation, other=other.url, **{**FEW, "load": [20_000, 50, 0.5]})
    assert len(table) == 8
    assert not of_kind(investigation, "resend")
    assert any("[8192, 200, 0.7]" in warning["remedy"] for warning in investigation.run.manifest["warnings"])


# --- headroom ------------------------------------------------------------------------------------------------------

GROUPS = (*(Group(n, "sliding", 32, 1024, 2, False, 1) for n in range(5)), Group(5, "full", 64, None, 2, False, 1))


def test_headroom_is_what_the_release_reports() -> None:
    """kv_cache_size_tokens stands where it is reported, with its source."""
    found = headroom('vllm:cache_config_info{kv_cache_size_tokens="269243",num_gpu_blocks="8192"} 1')
    assert (found.tokens, found.blocks) == (269_243, 8192)
    assert "kv_cache_size_tokens" in found.source


def test_headroom_without_groups_is_unknown() -> None:
    """Blocks alone are no tokens: a hybrid model's groups share them."""
    text = 'vllm:cache_config_info{num_gpu_blocks="8192",block_size="32"} 1'
    assert headroom(text).tokens is None
    assert headroom(None).tokens is None


def test_headroom_from_groups_gives_windows_their_blocks_once() -> None:
    """Five windows of 1,024 take 33 blocks each; the rest holds 64 tokens a block in the one full group."""
    header = Header("0.28.0", GROUPS, 64, 32, 8192, 0, None, None, 1, 0)
    assert one_sequence(header, 8192) == (8192 - 5 * 33) * 64
    text = 'vllm:cache_config_info{num_gpu_blocks="8192",block_size="32"} 1'
    assert headroom(text, header).tokens == 513_728


# --- prompts of the caller's own -----------------------------------------------------------------------------------

WORKER = '{"role": "worker", "messages": [{"role": "user", "content": "%s"}]}'


def test_prompts_of_ones_own_are_asked_by_role(attach: Attach, stub: StubServer, tmp_path: Path) -> None:
    """Every prompt of the file is streamed under its role; its text is in no row."""
    file = tmp_path / "roles.jsonl"
    architect = WORKER.replace("worker", "architect")
    file.write_text("\n".join([WORKER % "fix rule one", WORKER % "fix rule two", architect % "plan the run"]) + "\n")
    investigation = attach()
    table = speculation.run(investigation, **{**FEW, "shapes": [str(file)], "repeats": 1})
    assert table["item"].tolist() == ["worker 1", "worker 2", "architect 1"]
    assert [body["messages"][0]["content"] for body in streamed(stub)] == [
        "fix rule one",
        "fix rule two",
        "plan the run",
    ]
    assert "fix rule" not in (investigation.path / "raw" / "speculation.jsonl").read_text()
    assert len(speculation.run(attach(), **{**FEW, "shapes": [str(file)], "repeats": 1})) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no prompt"),
        ("nonsense", "line 1"),
        ('{"role": "a", "messages": []}', "line 1"),
        (WORKER % "a" + "\n7", "line 2"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused(attach: Attach, tmp_path: Path, text: str, said: str) -> None:
    """An empty file or a line of another form is refused with its number, before anything is sent."""
    file = tmp_path / "roles.jsonl"
    file.write_text(text)
    with pytest.raises(RunError, match=said):
        speculation.run(attach(), **{**FEW, "shapes": [str(file)]})
