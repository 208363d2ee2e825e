"""Equality: what counts as a difference, what as a pass, and what as nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from stub import StubServer, default_answer, error

from prefixscope import equality
from prefixscope.errors import RunError
from prefixscope.investigation import Investigation

Attach = Callable[..., Investigation]
QUICK = {"documents": 2, "tokens": 500, "answer_tokens": 12}


def answer(text: str, ids: Sequence[int] | None = None, margins: Sequence[float] | None = None) -> dict[str, Any]:
    return {"text": text, "token_ids": ids, "margins": margins}


def compared(investigation: Investigation, **options: Any) -> list[dict[str, Any]]:
    equality.run(investigation, **{**QUICK, **options})
    return [row for row in investigation.run.rows("equality") if row["kind"] == "comparison"]


def classes(rows: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    return Counter((row["pair"], row["class"]) for row in rows)


# --- two answers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "kind", "first"),
    [
        ("a b c", "a b c", "identical", None),
        ("a b c", "a b  c\n", "whitespace", 4),
        ("a b c", "a **b** c", "markup", 2),
        ("- a\n- b", "* a\n* b", "markup", 0),
        ("a b c", "a d c", "words", 2),
        ("a b c", "a b", "words", 3),
        ("", "a", "words", 0),
        ("state-of-the-art", "stateoftheart", "markup", 5),
    ],
)
def test_texts_are_classed_by_how_they_differ(left: str, right: str, kind: str, first: int | None) -> None:
    """Identical, only whitespace, only markup, or words; and the first place where they part."""
    found = equality.difference(answer(left), answer(right))
    assert (found["class"], found["first_difference"], found["by"]) == (kind, first, "text")
    assert found["identical"] == (kind == "identical")


def test_token_ids_decide_where_both_have_them() -> None:
    """Different ids are a difference even where the text reads alike, and the same ids are none."""
    same = equality.difference(answer("x", [1, 2]), answer("y", [1, 2]))
    assert (same["identical"], same["by"]) == (True, "token ids")
    other = equality.difference(answer("\ufffd", [200, 7]), answer("\ufffd", [201, 7]))
    assert (other["identical"], other["first_difference"]) == (False, 0)


def test_ids_that_differ_under_the_same_text_are_not_called_whitespace() -> None:
    """Two bytes that both print as a replacement character are not 'only whitespace'."""
    assert equality.difference(answer("a\ufffd", [1, 200]), answer("a\ufffd", [1, 201]))["class"] == "words"


def test_text_decides_where_one_side_has_no_ids() -> None:
    """A server that gives no token ids is compared by text, and the row says so."""
    assert equality.difference(answer("x", [1]), answer("x", None))["by"] == "text"


def test_the_margin_is_that_of_the_place_where_they_part() -> None:
    """Left's margin at the first differing token; none where the answers are equal, or nobody knows."""
    left = answer("abc", [1, 2, 3], [0.5, 0.01, 0.7])
    assert equality.difference(left, answer("axc", [1, 9, 3]))["margin"] == 0.01
    assert equality.difference(left, answer("abcd", [1, 2, 3, 4]))["margin"] is None
    assert equality.difference(left, left)["margin"] is None
    assert equality.difference(answer("abc", [1, 2], None), answer("ab", [1, 3]))["margin"] is None


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [
        (19, 20, 0.764, 0.991),
        (10, 10, 0.722, 1.0),
        (0, 10, 0.0, 0.278),
        (20, 20, 0.839, 1.0),
        (1, 2, 0.095, 0.905),
        (0, 0, 0.0, 1.0),
    ],
)
def test_a_count_comes_with_its_interval(successes: int, count: int, low: float, high: float) -> None:
    """The 95 % score interval: 19 of 20 says at least 76 %, and 10 of 10 no more than that 72 % or more are equal."""
    assert equality.wilson(successes, count) == pytest.approx((low, high), abs=0.0006)


# --- a server ------------------------------------------------------------------------------------------------------


def test_a_deterministic_server_is_equal_with_hits(attach: Attach, stub: StubServer) -> None:
    """Cold, control and warm agree for every document under both names, and warm answers came from the cache."""
    investigation = attach()
    rows = compared(investigation)
    assert classes(rows) == {("cold-control", "identical"): 4, ("cold-warm", "identical"): 4}
    assert {row["model"] for row in rows} == {"tiny", "tiny-lora"}
    assert {row["cached_tokens"] for row in rows if row["pair"] == "cold-warm"} == {448}
    assert {row["cached_tokens"] for row in rows if row["pair"] == "cold-control"} == {0}
    assert {row["by"] for row in rows} == {"token ids"}
    assert all(row["distinct_tokens"] > 1 for row in rows)
    assert investigation.run.manifest["stages"]["equality"]["status"] == "done"


def test_four_arms_are_asked_under_two_salts(attach: Attach, stub: StubServer) -> None:
    """Cold, warm and follow-up share a salt; the control has another; every arm is greedy with log-probabilities."""
    stub.lora = None
    investigation = attach()
    compared(investigation, documents=1)
    cold, control, warm, follow_up = stub.sent()[1:]
    assert cold["messages"] == control["messages"] == warm["messages"] == follow_up["messages"][:1]
    assert cold["cache_salt"] == warm["cache_salt"] == follow_up["cache_salt"] != control["cache_salt"]
    assert all(body["temperature"] == 0 and body["logprobs"] for body in stub.sent()[1:])
    answers = [row for row in investigation.run.rows("equality") if row["kind"] == "answer"]
    assert [row["arm"] for row in answers] == list(equality.ARMS)
    assert follow_up["messages"][1] == {"role": "assistant", "content": answers[2]["text"]}


def test_a_server_that_hits_from_the_third_send_on_is_asked_once_more(attach: Attach, stub: StubServer) -> None:
    """The warm answer is then the third send's; the second one, which hit nothing, has a row of its own."""
    stub.lora, stub.sends = None, 2
    investigation = attach()
    rows = compared(investigation, documents=1)
    assert classes(rows) == {("cold-control", "identical"): 1, ("cold-warm", "identical"): 1}
    told = investigation.run.rows("equality")
    beside = [row for row in told if row["kind"] == "beside"]
    assert [(row["cached_tokens"], row["why"]) for row in beside] == [
        (0, "a second send without a hit, so the third one is the warm answer")
    ]
    assert len([row for row in told if row["kind"] in ("answer", "beside", "discarded")]) == len(stub.sent())


@pytest.mark.parametrize("knob", ["prefix_caching", "reports_cached"])
def test_equal_without_a_hit_is_void(attach: Attach, stub: StubServer, knob: str) -> None:
    """Where nothing came from the cache, or nobody knows, an equal answer is neither a pass nor a failure."""
    setattr(stub, knob, False)
    rows = compared(attach())
    assert classes(rows) == {("cold-control", "identical"): 4, ("cold-warm", "void"): 4}
    assert {row["identical"] for row in rows if row["class"] == "void"} == {None}


def test_a_difference_of_the_cache_shows_in_the_warm_pair_alone(attach: Attach, stub: StubServer) -> None:
    """A server that answers otherwise on cached blocks differs cold against warm, and not cold against control."""
    seen: set[tuple[str, int]] = set()

    def answer(ids: Sequence[int], salt: str, number: int) -> list[int]:
        known = (salt, len(ids)) in seen
        seen.add((salt, len(ids)))
        return [
            *default_answer(ids, salt, number)[:5],
            *(b"warm!" if known else b"cold!"),
            *default_answer(ids, salt, number),
        ]

    stub.answer = answer
    rows = compared(attach())
    assert classes(rows) == {("cold-control", "identical"): 4, ("cold-warm", "words"): 4}
    different = [row for row in rows if row["class"] == "words"]
    assert {(row["first_difference"], row["margin"]) for row in different} == {(5, 1.5)}


def test_a_server_that_never_repeats_itself_differs_in_its_control_too(attach: Attach, stub: StubServer) -> None:
    """Where two cold sends differ already, the control says so beside every warm difference."""
    stub.answer = lambda ids, salt, number: list(f"answer {number}".encode())
    assert classes(compared(attach())) == {("cold-control", "words"): 4, ("cold-warm", "words"): 4}


def test_without_its_control_a_document_is_not_compared(attach: Attach, stub: StubServer) -> None:
    """A refused control ends its document: there is no comparison that could blame the cache, and a row tells why."""
    stub.lora = None
    stub.edit = lambda answer, request: error(500, "boom") if len(stub.sent()) == 3 else answer
    investigation = attach()
    rows = compared(investigation)
    assert {row["document"] for row in rows} == {"document 2"}
    failed = [row for row in investigation.run.rows("equality") if row.get("status") == "failed"]
    assert [(row["document"], row["arm"]) for row in failed] == [("document 1", "control")]
    assert "boom" in failed[0]["error"]
    assert investigation.run.manifest["stages"]["equality"]["status"] == "partial"


def test_a_server_without_token_ids_is_compared_by_text(attach: Attach, stub: StubServer) -> None:
    """Where the server returns no ids, equality is that of the text, and every row says so."""

    def without_ids(answer: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
        choice = {name: value for name, value in answer["choices"][0].items() if name != "token_ids"}
        return {**answer, "choices": [choice]}

    stub.edit = without_ids
    rows = compared(attach())
    assert {row["by"] for row in rows} == {"text"}
    assert {row["identical"] for row in rows} == {True}


def test_answers_that_are_there_are_not_asked_again(attach: Attach, stub: StubServer) -> None:
    """A second run asks only for new documents and compares nothing twice."""
    first = compared(attach())
    sent = len(stub.sent())
    assert compared(attach()) == first
    assert len(stub.sent()) == sent
    assert len(compared(attach(), documents=3)) == len(first) + 4


def test_a_document_that_broke_off_is_asked_again_whole(attach: Attach, stub: StubServer) -> None:
    """Going on asks all four arms of an unfinished document under a new salt; finished ones stay."""
    stub.lora = None
    stub.edit = lambda answer, request: error(500, "boom") if len(stub.sent()) == 8 else answer
    assert len(compared(attach())) == 2
    sent = len(stub.sent())
    assert len(compared(attach())) == 4
    assert len(stub.sent()) == sent + 1 + len(equality.ARMS)


def test_an_attached_server_is_asked_as_it_is(attach: Attach, stub: StubServer) -> None:
    """No interval is claimed for a server that we did not start."""
    stub.lora = None
    rows = compared(attach(), documents=1)
    assert {row["setting"]["label"] for row in rows} == {"as served"}


@pytest.mark.parametrize(
    "given", [{"documents": 0}, {"tokens": -1}, {"answer_tokens": 0}, {"tokens": 1_000_000_000}], ids=str
)
def test_sizes_that_make_no_sense_are_refused(attach: Callable[..., Investigation], given: dict[str, int]) -> None:
    """No documents, none of a positive length, or longer than the context: refused with the value, nothing is sent."""
    with pytest.raises(RunError, match=f"{next(iter(given.values())):,}"):
        equality.run(attach(), **{"documents": 1, "tokens": 200, **given})
