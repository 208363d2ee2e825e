"""The bug report for vLLM: in the shape of its form, short enough for GitHub, and inert whatever names it holds."""

from __future__ import annotations

import ast
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import mistune
import pytest
from data.make_run import make_run

from prefixscope import frames, notes
from prefixscope.errors import ReportError
from prefixscope.lookups import bring
from prefixscope.material import facts, gather
from prefixscope.notes import for_issue
from prefixscope.notes.account import account
from prefixscope.notes.for_issue import MOST_CHARACTERS, Part, issue
from prefixscope.notes.markdown import bullets, code, command_lines, fence, folded, inert, table
from prefixscope.runs import Run

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "run"
TRACE = Path(__file__).parents[1] / "data" / "trace-incident.jsonl"
HOSTILE = (
    "</details><script>alert(1)</script> <img src=x onerror=alert(2)> ```\n````text\n# h @vllm-project/maintainers "
    "#123 GH-7 vllm-project/vllm#9 a@b.example [x](http://evil.example) ![i](http://evil.example/i) "
    "www.evil.example https://evil.example `tick` |cell| $math$ ~~s~~ <!-- c --> &lt;b&gt; **bold** _em_ <details> "
    "vllm#123"
)


class Seen(HTMLParser):
    """What a browser would make of the rendered Markdown: tags, links, and the text outside of code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self._code = 0
        self.feed(str(mistune.create_markdown(escape=False, plugins=["table", "strikethrough", "url"])(text)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [str(value) for name, value in attrs if name in ("href", "src")]
        self._code += tag == "code"

    def handle_endtag(self, tag: str) -> None:
        self._code -= tag == "code"

    def handle_data(self, data: str) -> None:
        self.text += "" if self._code else data


OURS = {"h1", "h2", "h3", "p", "br", "details", "summary", "pre", "code", "table", "thead", "tbody", "tr", "th", "td",
        "ul", "li", "strong", "em", "a", "blockquote", "sub", "hr", "input", "img"}  # fmt: skip


def is_inert(text: str) -> Seen:
    """No tag, link, mention or reference that is not ours, and every folded part is closed."""
    seen = Seen(text)
    assert set(seen.tags) <= OURS, set(seen.tags) - OURS
    assert all(link.startswith("https://github.com/vllm-project/vllm/issues/") or link.endswith(".svg")
               for link in seen.links), seen.links  # fmt: skip
    assert not re.search(r"@\w", seen.text), "a mention"
    assert not re.search(r"(?<!vllm)#\d|vllm#123|vllm#9|GH-\d", seen.text), "a reference"
    assert not re.search(r"www\.|://", seen.text), "an address that becomes a link"
    return seen


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sample") / "run"
    shutil.copytree(SAMPLE, folder)
    return folder


@pytest.fixture(scope="module")
def report(sample: Path) -> str:
    return notes.write_issue(sample).read_text()


# --- the shape of the form ------------------------------------------------------------------------------------------


def test_the_headings_are_those_of_vllms_form(report: str) -> None:
    """Environment, bug and checklist stand under the form's headings, and the box is the reporter's to tick."""
    assert re.findall(r"^### (.+)$", report, re.MULTILINE) == [
        "Your current environment", "🐛 Describe the bug", "Before submitting a new issue...",
    ]  # fmt: skip
    assert report.startswith("<!-- Title: [Bug]: MTP on vLLM 0.29.0: repeated prompts hit nothing")
    assert re.search(r"<sub>Measured with prefixscope \d", report)
    assert len(re.findall(r"^- \[ \] ", report, re.MULTILINE)) == 1
    assert "- [x]" not in report


def test_the_environment_is_folded_in_the_shape_of_collect_env(report: str) -> None:
    """Machine and engine are listed as name and value under ruled titles, in one closed part."""
    part = report.split("### 🐛", 1)[0]
    assert part.count("<details>") == part.count("</details>") == 1
    for line in ("=" * 30, r"v(?i:llm) version +: 0\.29\.0", r"CPUs +: 2", r"served models +: gemma4-small",
                 r"KV cache groups +: 5 × sliding"):  # fmt: skip
        assert re.search(line, part), line


def test_collect_env_is_asked_for_where_it_is_not_there(tmp_path: Path) -> None:
    """A block that holds some of its lines is called just that; with them or without, the whole output is asked for."""
    folder = tmp_path / "run"
    shutil.copytree(SAMPLE, folder)
    file = folder / "run.json"
    for found, title in (
        (
            {"lines": {"OS": "Debian"}},
            "Lines of python -m vllm.collect_env, and what prefixscope recorded; please add the whole output",
        ),
        ({"absent": "no Python"}, "As prefixscope recorded it; please add the output of python collect_env.py"),
    ):
        file.write_text(json.dumps({**json.loads(file.read_text()), "collect_env": found}))
        told = notes.write_issue(folder).read_text()
        assert f"<summary>{title}</summary>" in told
        assert told.count("please add the") == 1


def test_the_bug_is_told_with_its_numbers_cause_and_figure(report: str) -> None:
    """Hits, what was expected, cause, the blocks in characters, workaround, related reports and what is ruled out."""
    for text in ("reuses nothing on the second send", "**Expected:** the second send of these 6,446 tokens hits 6,336",
                 "5 sliding-window groups (32-token blocks), ending the hit", "█", "×", "**Workaround:**",
                 "[vllm#53945](https://github.com/vllm-project/vllm/issues/53945)", "**Ruled out**",
                 "to the token, in"):  # fmt: skip
        assert text in report, text
    assert is_inert(report).tags.count("details") == report.count("<details>") == report.count("</details>")


def test_the_pytest_and_the_commands_are_folded(report: str) -> None:
    """The exported test is in the report, whole, and every server's command with it."""
    parts = dict(re.findall(r"<summary>(.+?)</summary>\n\n(.*?)\n\n</details>", report, re.DOTALL))
    test = next(text for name, text in parts.items() if "pytest" in name)
    source = test.removeprefix("```python\n").removesuffix("\n```")
    functions = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    assert "test_second_send_hits_what_the_third_does" in functions
    said = ast.get_docstring(ast.parse(source)) or ""
    assert "Pool, dtype and context are the test's own" in said
    assert "Groups, blocks, interval and draft tokens are the server's" in said
    assert sum("How the server was started" in name for name in parts) == 1
    every = next(text for name, text in parts.items() if "Every server of the run" in name)
    assert every.count("\n# s") == len(frames.servers(frames.load_run(SAMPLE)))
    assert "# s02, MTP\nnothing" in every
    assert "# s08, MTP, interval 2,048\n+ --prefix-cache-retention-interval 2048\n\n" in every
    assert re.search(
        r"# s01, no MTP\n- --speculative-config .+\n- --per-request-spec-decode-metrics detailed\n\n", every
    )


def test_the_environment_is_that_of_the_server_that_is_reported(report: str) -> None:
    """Drafter, draft length and pool are those of the server with the fault, not of the one started first."""
    part = report.split("### 🐛", 1)[0]
    assert re.search(r"speculative decoding +: on, mtp\n", part)
    assert re.search(r"draft tokens a step +: 3\n", part)
    assert "(s01" not in part
    assert "| s01 | no MTP | none | 0 |" in part
    assert "| s02 | MTP (reported here) | mtp, 3 tokens | 0 |" in part
    assert "| s07 | MTP, interval 1,024 | mtp, 3 tokens | 1,024 |" in part
    assert "pool, blocks |" not in part  # the same for all


def test_the_report_tells_the_facts_of_the_verdicts_server_too(sample: Path, tmp_path: Path) -> None:
    """In report.html what depends on a start is of that server, and of the first one only under its name."""
    found = {name: (value, source) for name, value, source in facts(gather(sample))}
    assert found["speculative decoding"] == ("on, mtp", "trace header of s02")
    assert found["pool, tokens (s01, no MTP)"][0] == "269,243"
    assert "pool, tokens" not in found
    shutil.copytree(sample, tmp_path / "untraced")
    shutil.rmtree(tmp_path / "untraced" / "trace")
    untraced = {name: (value, source) for name, value, source in facts(gather(tmp_path / "untraced"))}
    assert untraced["speculative decoding"] == ("on", "start of s02")
    assert untraced["pool, blocks (s01, no MTP)"][0] == "8,192"


def test_a_report_of_a_healthy_server_says_that_there_is_nothing_to_report(tmp_path: Path) -> None:
    """Without a fault the first lines say so, and neither workaround nor test is in it."""
    folder = make_run(tmp_path / "run", stages=("baseline",))
    rows = [json.loads(line) for line in (folder / "raw" / "baseline.jsonl").read_text().splitlines()]
    rows = [one for one in rows if one["setting"]["label"] == "no MTP"]
    (folder / "raw" / "baseline.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    text = notes.write_issue(folder).read_text()
    assert text.startswith("> This run shows no fault; the form is filled all the same. ")
    assert re.search(
        r"^<!-- Title: no MTP on vLLM 0\.29\.0: repeated prompts hit the prefix cache -->$", text, re.MULTILINE
    )
    assert "[Bug]" not in text
    assert "Workaround" not in text
    assert "pytest" not in text


def test_a_trace_alone_can_be_reported(tmp_path: Path) -> None:
    """A trace without requests of ours is told with its cause and blocks."""
    run = Run.create(tmp_path / "run", target={"kind": "sample"}, parameters={})
    bring(TRACE, run.path)
    text = notes.write_issue(run.path).read_text()
    assert "missing 166–167" in text
    assert is_inert(text)


# --- its length -----------------------------------------------------------------------------------------------------


def test_a_default_run_fits_whole(report: str) -> None:
    """The recorded run is far below GitHub's limit, and nothing of it is cut."""
    assert len(report) <= MOST_CHARACTERS < 65_536
    assert "Cut to fit" not in report


def test_a_huge_run_is_cut_with_a_note(tmp_path: Path) -> None:
    """Hundreds of servers and dozens of configurations stay below any limit; what is cut or left out says so."""
    folder = make_run(tmp_path / "run")
    manifest = json.loads((folder / "run.json").read_text())
    manifest["servers"] = [{**one, "id": f"s{n}", "command": one["command"] + f" --x{n} y" * 200}
                           for n in range(20) for one in manifest["servers"]]  # fmt: skip
    (folder / "run.json").write_text(json.dumps(manifest))
    rows = [json.loads(line) for line in (folder / "raw" / "baseline.jsonl").read_text().splitlines()]
    named = [{"label": f"{'MTP ' * 20}{n}", "id": str(n)} for n in range(30)]
    more = [{**one, "cell": f"{one['cell']}{name['id']}", "setting": {**one["setting"], **name}}
            for name in named for one in rows[24:30]]  # fmt: skip
    (folder / "raw" / "baseline.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows + more))
    told = account(folder)
    for most, said in ((MOST_CHARACTERS, r"Cut to fit: [\d,]+ lines? more\."), (11_000, r"Left out to fit: ")):
        text = issue(told, most=most)
        assert len(text) <= most
        assert re.search(said, text)
        assert text.count("<details>") == text.count("</details>")
        assert "### Before submitting a new issue..." in text
        assert is_inert(text).tags.count("details") == text.count("<details>")


def test_a_part_is_cut_at_a_line_and_says_how_much_is_left_out() -> None:
    """A cut part ends with whole lines and their count; one that is worth nothing cut is left out with its reason."""
    part = Part("lines", "\n".join(f"line {n}" for n in range(100)), "text")
    cut = part.within(400)
    assert len(cut) <= 400
    kept = re.findall(r"^line \d+$", cut, re.MULTILINE)
    assert f"Cut to fit: {100 - len(kept)} lines more." in cut
    assert part.within(10) == ""
    assert part.within(10_000).count("line ") == 100
    whole = Part("test", "x\n" * 500, "python", whole=True, instead="It did not fit.").within(300)
    assert "It did not fit." in whole
    assert "```" not in whole


# --- nobody's text does anything -----------------------------------------------------------------------------------


def test_hostile_names_are_inert(tmp_path: Path) -> None:
    """Model names, settings, commands, facts, errors and versions that hold HTML, fences and mentions do nothing."""
    folder = make_run(tmp_path / "run")
    manifest = json.loads((folder / "run.json").read_text())
    manifest["facts"] = [{"name": HOSTILE, "value": HOSTILE, "source": HOSTILE},
                         {"name": "served models", "value": HOSTILE, "source": "x"}]  # fmt: skip
    manifest["engine"] = {"version": HOSTILE}
    manifest["prefixscope_version"] = manifest["run_id"] = HOSTILE
    manifest["environment"] = {"cpu": HOSTILE, "gpu": HOSTILE}
    manifest["stages"]["equality"] = {"status": "failed", "error": HOSTILE}
    manifest["target"]["label"] = HOSTILE
    for one in manifest["servers"]:
        one["command"] = one["id"] = HOSTILE
    (folder / "run.json").write_text(json.dumps(manifest))
    for path in (folder / "raw").glob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for one in rows:
            one["model"] = f"{HOSTILE} {one.get('model')}"
            if "setting" in one:
                one["setting"]["label"] = f"{HOSTILE[40:]} {one['setting']['label']}"
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    seen = is_inert(notes.write_issue(folder).read_text())
    assert "img" not in seen.tags
    assert seen.tags.count("details") <= 12
    note = is_inert(notes.write_incident(folder).read_text())
    assert note.tags.count("img") == 3


@pytest.mark.parametrize(
    "text",
    ["@someone", "x #12 y", "GH-12", "www.evil.example", "https://evil.example/x", "<b>", "a|b", "# title", "- item",
     "1. item", "> quote", "---", "===", "a\n\n# b", "![x](y)", "[x](y)", "*a*", "_a_", "`", "``x`", "$x$", "\\<b>",
     "&lt;script&gt;", "~~a~~", "<!--", "vllm#12345678"],
)  # fmt: skip
def test_inert_text_is_one_paragraph_of_text(text: str) -> None:
    """Each of Markdown's own beginnings, and what GitHub makes links of, stays text on one line."""
    made = inert(text)
    assert "\n" not in made
    seen = Seen(made)
    assert set(seen.tags) <= {"p", "code"}, seen.tags
    assert seen.links == []
    assert not re.search(r"@\w|#\d|GH-\d|www\.|://", seen.text)


def test_known_references_are_links_and_flags_are_code() -> None:
    """What our own tables cite is linked; flags are set as code."""
    made = inert("with --prefix-cache-retention-interval 1024 (vllm#53945)")
    assert "`--prefix-cache-retention-interval 1024`" in made
    assert "[vllm#53945](https://github.com/vllm-project/vllm/issues/53945)" in made


def test_fences_and_code_hold_any_backticks() -> None:
    """A fence is longer than any run of backticks in it, and inline code too."""
    for text in ("```", "a ```` b", "`", "```\n</details>\n~~~"):
        assert Seen(fence(text)).tags == ["pre", "code"]
        assert set(Seen(code(text)).tags) == {"p", "code"}
    assert Seen(table(("a", "b"), [(code("x|y"), "p|q")])).tags.count("td") == 2
    assert Seen(bullets(["- x", "1. y"])).tags == ["ul", "li", "li"]
    assert "<script" not in folded("<script>@x", fence("x"))


def test_commands_are_broken_at_their_flags_only() -> None:
    """A command gets a line a flag and means the same; one that can't be split stays as it is."""
    made = command_lines("""python -m x --config '{"a": "--b c"}' --port 1""")
    assert made.splitlines() == ["python -m x \\", """  --config '{"a": "--b c"}' \\""", "  --port 1"]
    assert command_lines("it's --broken") == "it's --broken"


def test_nothing_private_is_in_any_form(tmp_path: Path) -> None:
    """Host names, folders, answers and run paths stay in the run directory; so does what no list names."""
    folder = make_run(tmp_path / "run")
    manifest: dict[str, Any] = json.loads((folder / "run.json").read_text())
    manifest["surprise"] = manifest["environment"]["surprise"] = "quite-private"
    (folder / "run.json").write_text(json.dumps(manifest))
    notes.write_incident(folder)
    notes.write_issue(folder)
    notes.write_csv(folder, folder / "csv")
    made = [*folder.glob("incident*"), folder / "issue.md", *(folder / "csv").iterdir()]
    assert len(made) > 25
    for path in made:
        text = path.read_text()
        for private in ("harbour lights", "someone", "build-host-17", "quite-private", str(tmp_path)):
            assert private not in text, (path.name, private)


def test_a_secret_is_in_no_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that holds a secret's value in a spelling that nobody masks gives no file, and the error names it."""
    folder = make_run(tmp_path / "run", stages=("baseline",))
    path = folder / "raw" / "baseline.jsonl"
    path.write_text(path.read_text().replace('"label": "MTP"', '"label": "MTP cXVpdGUtc2VjcmV0LXZhbHVl"'))
    monkeypatch.setenv("SOME_TOKEN", "quite-secret-value")
    for write in (notes.write_incident, notes.write_issue, lambda run: notes.write_csv(run, tmp_path / "csv")):
        with pytest.raises(ReportError, match="SOME_TOKEN"):
            write(folder)
    assert not (folder / "incident.md").exists()
    assert not (folder / "issue.md").exists()


def test_the_form_is_named_where_it_comes_from() -> None:
    """The module says which file of vLLM's its headings are from, for whoever has to follow a change."""
    assert ".github/ISSUE_TEMPLATE/400-bug-report.yml" in (for_issue.__doc__ or "")
