"""A trace in the terminal: every line rests on the recorded incident, or on a variation of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prefixscope import diagnosis
from prefixscope.diagnosis import cause_words
from prefixscope.diagnosis.words import WORDS
from prefixscope.errors import TraceError
from prefixscope.terminal import Following, ruler, summarise
from prefixscope.terminal.ruler import part
from prefixscope.trace import Follower, Group, GroupView, Lookup, Trace, ranges_text, read_trace

RECORDED = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"


def lines() -> list[bytes]:
    return RECORDED.read_bytes().splitlines(keepends=True)


def look(trace: Trace, request_id: str) -> Lookup:
    lookup = trace.lookup(request_id)
    assert lookup is not None
    return lookup


# --- words -------------------------------------------------------------------------------------------------------


def test_every_cause_has_words() -> None:
    """Each code of the module's table has plain words, and no other code has."""
    documented = [line.split("|")[1].strip() for line in (diagnosis.__doc__ or "").splitlines() if "|" in line]
    assert set(documented[2:]) == set(WORDS)
    assert cause_words("windows_dont_meet") == "stored and needed windows don't meet"


def test_an_unknown_code_stays_readable() -> None:
    """A code of a later version is shown without its underscores."""
    assert cause_words("moon_phase") == "moon phase"


# --- the ruler ---------------------------------------------------------------------------------------------------


def test_ruler_of_the_incident() -> None:
    """Equal groups share a row, the limiting ones come first, and missing blocks stand before the stored ones."""
    drawn = ruler(look(read_trace(RECORDED), "cpu-2"), width=100)
    assert drawn[1].startswith("▸ 5 sliding-window groups (32-token blocks), ending the hit")
    assert drawn[2].strip("· ").startswith("××")
    assert drawn[2].index("×") < drawn[2].index("█") < drawn[2].index("░")
    assert drawn[3].strip() == "needed 166–198 · stored 168–200 · missing 166–167"
    assert drawn[4].startswith("  full-attention group")
    assert "×" not in drawn[5]
    assert all(len(line) <= 100 for line in drawn)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_ruler_keeps_to_the_width(width: int) -> None:
    """Bars fit the terminal, whatever its width."""
    drawn = ruler(look(read_trace(RECORDED), "cpu-2"), width=width)
    assert all(len(line) <= width for line in drawn if set(line) & set("█×") and "stored" not in line)


def test_one_missing_block_of_thousands_shows() -> None:
    """With 40 different groups of 10,000 blocks there are few rows, each with its missing block visible."""
    base = look(read_trace(RECORDED), "cpu-2")
    views = []
    for gid in range(40):
        group = Group(gid, "sliding" if gid % 2 else "full", 16, 1024, 1, False, None)
        hole = 5_000 + gid
        views.append(GroupView(group, ((0, hole), (hole + 1, 10_000)), (0, 10_000), ((hole, hole + 1),), 0, gid == 7))
    drawn = ruler(replace(base, groups=tuple(views), tokens=160_001), width=90)
    bars = [line for line in drawn if "█" in line and "stored" not in line]
    assert len(bars) == 8
    assert all("×" in line for line in bars)
    assert "32 more kinds of rows (32 groups), 32 of them with missing blocks" in "\n".join(drawn)
    assert drawn[1].startswith("▸")
    assert len(drawn) < 30


def test_evicted_blocks_have_a_mark_of_their_own() -> None:
    """What was stored and evicted is drawn apart from what was never stored, and the key explains it."""
    base = look(read_trace(RECORDED), "cpu-2")
    view = replace(base.groups[0], cached=((168, 190),), missing=((166, 168), (190, 199)), evicted=((190, 199),))
    drawn = ruler(replace(base, groups=(view, base.groups[5])))
    assert drawn[2].index("×") < drawn[2].index("█") < drawn[2].index("○")
    assert "missing 166–167, 190–198 · evicted since 190–198" in drawn[3]
    assert "○ evicted since" in drawn[-1]


def test_what_was_not_scanned_is_not_called_missing() -> None:
    """Outside a scanned part a question mark stands, and the key explains it."""
    base = look(read_trace(RECORDED), "cpu-2")
    narrow = replace(base.groups[0], scanned=(167, 180), cached=((168, 180),), missing=((167, 168),))
    drawn = ruler(replace(base, groups=(narrow, replace(base.groups[5], known=False, cached=()))))
    assert "?" in drawn[2]
    assert "scanned 167–179 only" in drawn[3]
    assert set(drawn[5].strip()) == {"?"}
    assert "not scanned" in drawn[6]
    assert "? not scanned" in drawn[-1]


def test_part_of_a_prompt_without_gaps_is_all_of_it() -> None:
    """Where every range begins at the prompt's start the ruler shows the prompt from its start."""
    lookup = look(read_trace(RECORDED), "tiny-1")
    assert part(lookup) == (0, 100)


def test_long_lists_of_ranges_are_cut() -> None:
    """Past a limit ranges are counted."""
    assert ranges_text([(0, 2), (4, 5), (6, 9)], limit=2) == "0–1, 4 and 1 more"
    assert ranges_text([(0, 2)], limit=2) == "0–1"
    assert ranges_text([], limit=2) == "none"


# --- the summary -------------------------------------------------------------------------------------------------


def test_summary_of_the_incident() -> None:
    """Geometry per engine, a line per lookup, the worst miss with its cause, remedy and price."""
    text = summarise(read_trace(RECORDED)).text(width=100)
    for words in (
        "Engine 1 of 3: vLLM 0.29.0, pid 29782, rank 0, mtp with 7 tokens",
        "5 × sliding · window 1,024 · 32-token blocks",
        "groups as in engine 1",
        "retention interval 1,024",
        "minimum cacheable prompt 193 tokens",
        "engine  time, UTC ",
        "     1  21:56:30.008  cpu-2",
        "166–167 in 5 sliding",
        "Cause: stored and needed windows don't meet.",
        "Remedy: Set --prefix-cache-retention-interval",
        "Price: A cold prompt of 6,446 tokens keeps 265 blocks",
        "8 lookups from 2026-11-29 21:56:29 UTC on, in 1.2 s; 1 missed",
    ):
        assert words in text, words
    assert all(len(line) <= 138 for line in text.splitlines())


def test_limit_lists_the_newest() -> None:
    """A limit leaves out the earliest lookups and says how many; 0 lists all."""
    trace = read_trace(RECORDED)
    few = summarise(trace, limit=2)
    assert [lookup.request_id for lookup, _ in few.rows] == ["dense-1", "dense-2"]
    assert "6 earlier lookups are not listed" in few.text()
    assert len(summarise(trace, limit=0).rows) == 8


def test_a_request_by_the_beginning_of_its_id() -> None:
    """An id may be cut, at its end or the way a line shows it; one that fits several requests is refused."""
    trace = read_trace(RECORDED)
    for name in ("spaced-2", "chatcmpl-spaced-2-0123abcd", "chatcmpl-sp…2-0123abcd"):
        shown = summarise(trace, request=name).shown
        assert shown is not None
        assert shown.request_id == "spaced-2"
    with pytest.raises(TraceError, match="2 requests begin with spaced"):
        summarise(trace, request="spaced")


def test_an_unknown_request_is_an_error_with_some_that_are_known(tmp_path: Path) -> None:
    """The newest ids stand in the error, and how many there are; in a trace without lookups that is what is said."""
    trace = read_trace(RECORDED)
    with pytest.raises(TraceError, match="no request in this trace begins with zzz") as caught:
        summarise(trace, request="zzz")
    assert caught.value.remedy.endswith("dense-2, dense-1, spaced-2, spaced-1, tiny-1 … (8 in all)")
    (tmp_path / "trace-1.jsonl").write_bytes(lines()[0])
    assert "No lookup yet" in summarise(read_trace(tmp_path), request="zzz").text()


@pytest.mark.parametrize(
    ("exact", "common", "words"),
    [
        (6_446, 6_432, "had all of these 6,446 tokens"),
        (None, 6_432, "had all of these 6,446 tokens, as far as whole blocks of 32 tell (6,432 tokens)"),
        (6_440, 6_432, "shares the first 6,440 tokens"),
        (None, 6_400, "shares the first 6,400 tokens, counted in whole blocks of 32"),
    ],
)
def test_a_prompt_that_was_resent_does_not_read_as_another(
    tmp_path: Path, exact: int | None, common: int, words: str
) -> None:
    """A whole resend is told as that, though only whole blocks are compared; a shared part with how far it is known."""
    events = [json.loads(line) for line in lines()]
    second = next(one for one in events if one["event"] == "lookup" and "cpu-2" in one["request"])
    second["closest"] |= {"common_tokens": common, "exact_tokens": exact}
    (tmp_path / "trace-1.jsonl").write_text("".join(json.dumps(one) + "\n" for one in events))
    text = " ".join(summarise(read_trace(tmp_path), request="cpu-2").text(width=110).split())
    assert f"cpu-1, {words} " in text
    assert f"The closest earlier request, cpu-1, {words}." in text


def test_the_fields_of_a_group_are_json_in_json(tmp_path: Path) -> None:
    """What the engine said of its groups' specs is an object, in the summary and while following; null where none."""
    header = json.loads(lines()[0])
    header["groups"][0]["fields"] = {"head_size": 128}
    (tmp_path / "trace-1.jsonl").write_text(json.dumps(header) + "\n")
    followed = json.loads(Following([tmp_path], as_json=True).lines()[0])
    for groups in (followed["groups"], summarise(read_trace(tmp_path)).to_json()["engines"][0]["groups"]):
        assert groups[0]["fields"] == {"head_size": 128}
        assert [group["fields"] for group in groups[1:]] == [None] * (len(groups) - 1)


def test_json_holds_what_the_text_holds() -> None:
    """Engines, lookups with code and words, ranges as half-open pairs, and the diagnosis."""
    found = json.loads(json.dumps(summarise(read_trace(RECORDED)).to_json()))
    assert [engine["interval"] for engine in found["engines"]] == [0, 1024, "dense"]
    assert found["lookups"][1]["missing"] == [{"gids": [0, 1, 2, 3, 4], "ranges": [[166, 168]]}]
    assert found["shown"]["groups"][0]["needed"] == [166, 199]
    assert found["diagnosis"]["words"] == "stored and needed windows don't meet"


def test_a_trace_without_lookups_says_what_to_do(tmp_path: Path) -> None:
    """Only a header: the geometry is shown, and nothing is decided."""
    (tmp_path / "trace-1.jsonl").write_bytes(lines()[0])
    found = summarise(read_trace(tmp_path))
    assert "No lookup yet" in found.text()
    assert not found.decided
    assert found.to_json()["shown"] is None


def test_a_trace_without_its_first_line_asks_for_the_whole_file(tmp_path: Path) -> None:
    """Lookups whose engine's header is missing are there: not another request is wanted, but the file's beginning."""
    (tmp_path / "trace-1.jsonl").write_bytes(b"\n".join(lines()[1:6]) + b"\n")
    text = summarise(read_trace(tmp_path)).text()
    assert "give the whole file" in text
    assert "No lookup yet" not in text


def test_warnings_are_shown(tmp_path: Path) -> None:
    """What was wrong with a trace stands above its lookups."""
    (tmp_path / "trace-1.jsonl").write_bytes(RECORDED.read_bytes()[:-20])
    assert "warning, truncated: trace-1.jsonl: the last line is cut off" in summarise(read_trace(tmp_path)).text()


def test_ids_can_not_write_to_the_terminal() -> None:
    """Escape codes and direction marks in an id, which any client chooses, are not printed."""
    base = look(read_trace(RECORDED), "cpu-2")
    evil = replace(base, request_id="a\x1b[2Jb\u202e\n", engine_request_id="x")
    text = summarise(Trace(headers=[base.header], lookups=[evil])).text()
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "a�[2Jb��" in text


def test_the_worst_miss_is_what_a_repeat_lost() -> None:
    """A first send of a longer prompt is no miss; the repeat that hit nothing is, by all that it could have hit."""
    trace = read_trace(RECORDED)
    worst = trace.worst()
    assert worst is not None
    assert worst.request_id == "cpu-2"
    assert worst.missed_tokens == 6336
    assert {one.missed_tokens for one in trace.lookups} == {0, 6336}
    assert [one.request_id for one in trace.sends(worst)] == ["cpu-1", "cpu-2", "cpu-3"]
    assert [one.request_id for one in trace.sends(worst, limit=2)] == ["cpu-1", "cpu-2"]
    assert Trace().worst() is None


# --- following ---------------------------------------------------------------------------------------------------


def test_following_gives_each_lookup_once(tmp_path: Path) -> None:
    """Fed byte range by byte range, cut anywhere, every lookup is given once and whole."""
    path, whole = tmp_path / "trace-1.jsonl", RECORDED.read_bytes()
    follower = Follower([tmp_path])
    seen: list[str] = []
    for cut in range(0, len(whole) + 997, 997):
        path.write_bytes(whole[:cut])
        seen += [one.request_id for one in follower.look()[1]]
    assert seen == [one.request_id for one in read_trace(RECORDED).lookups]


def test_following_knows_the_cause_of_what_is_new(tmp_path: Path) -> None:
    """A lookup that comes later is explained with what was read before; engines are introduced once."""
    path, whole = tmp_path / "trace-1.jsonl", lines()
    path.write_bytes(b"".join(whole[:4]))
    following = Following([tmp_path])
    first = following.lines()
    assert first[0].startswith("Engine: vLLM 0.29.0")
    assert "cpu-1" in first[-1]
    path.write_bytes(b"".join(whole[:7]))
    (line,) = following.lines()
    assert "stored and needed windows don't meet" in line
    assert following.lines() == []


def test_following_as_json_is_one_object_a_line(tmp_path: Path) -> None:
    """Each line is JSON and says what it is; a request's id picks its lookups."""
    found = [json.loads(line) for line in Following([RECORDED], request="cpu", as_json=True).lines()]
    assert [one["what"] for one in found] == ["engine"] * 3 + ["lookup"] * 3
    assert {one["request_id"] for one in found if one["what"] == "lookup"} == {"cpu-1", "cpu-2", "cpu-3"}


def test_following_waits_for_a_folder_to_fill_and_refuses_what_is_no_trace(tmp_path: Path) -> None:
    """An empty folder is waited for; a file without events, or a path that isn't there, is an error."""
    assert Following([tmp_path]).lines() == []
    (tmp_path / "a.jsonl").write_text("not a trace\n")
    with pytest.raises(TraceError, match="none is an event"):
        Following([tmp_path]).lines()
    with pytest.raises(TraceError, match="No file"):
        Following([tmp_path / "absent"]).lines()


def test_a_file_begun_anew_is_read_from_its_start(tmp_path: Path) -> None:
    """A file that got shorter was replaced: its lookups are new."""
    path = tmp_path / "trace-1.jsonl"
    path.write_bytes(RECORDED.read_bytes())
    follower = Follower([path])
    follower.look()
    path.write_bytes(b"".join(lines()[:7]))
    assert [one.request_id for one in follower.look()[1]] == ["cpu-1", "cpu-2"]


def test_following_forgets(tmp_path: Path) -> None:
    """Of a long trace only the newest lookups and what belongs to them are remembered, and causes stay right."""
    head, rest = lines()[0], [json.loads(line) for line in lines()[1:10]]
    path = tmp_path / "trace-1.jsonl"
    follower = Follower([path], keep=50)
    with path.open("wb") as file:
        file.write(head)
        for number in range(400):
            rows: list[dict[str, Any]] = json.loads(json.dumps(rest).replace("cpu-", f"r{number}-"))
            file.writelines(json.dumps({**row, "t": row["t"] + number}).encode() + b"\n" for row in rows)
            file.flush()
            trace, fresh = follower.look()
            assert len(fresh) == 3
            assert len(trace.lookups) <= 100
    reader = follower.reader
    assert len(reader.stores) <= 400
    assert all(len(one.last) <= 100 for one in reader.engines.values())
    assert diagnosis.explain(trace, "r399-2").cause == "windows_dont_meet"
