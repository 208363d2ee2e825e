"""Odd values of parameters: refused in words before anything is started."""

from __future__ import annotations

from typing import Any

import pytest

from prefixscope import asked, cli, notebooks
from prefixscope.errors import RunError


@pytest.mark.parametrize(
    ("stage", "name", "value", "words"),
    [
        ("sweep", "intervals", [-64], "positive whole number of tokens"),
        ("sweep", "intervals", ["often"], "'often'"),
        ("sweep", "intervals", [], "list of intervals"),
        ("sweep", "intervals", "0,1024", "list of intervals"),
        ("sweep", "intervals", list(range(64, 64 * 50, 64)), "starts a server"),
        ("sweep", "lengths", [0], "positive whole number"),
        ("sweep", "lengths", [-1], "positive whole number"),
        ("sweep", "lengths", ["long"], "positive whole number"),
        ("sweep", "lengths", [True], "positive whole number"),
        ("sweep", "lengths", [1e3], r"1000\.0: give a positive whole number"),
        ("sweep", "intervals", [64.0], "positive whole number of tokens"),
        ("equality", "tokens", 2400.5, "positive whole number"),
        ("baseline", "seed", 1.0, "0 or a positive whole number"),
        ("baseline", "configurations", ["mtp", "mtp"], "each configuration once"),
        ("sweep", "lengths", [10**9], "at most"),
        ("sweep", "lengths", 1600, "list"),
        ("baseline", "configurations", ["fast"], "no_mtp"),
        ("baseline", "seed", -1, "0 or a positive"),
        ("equality", "documents", 0, "positive whole number"),
        ("equality", "tokens", -5, "positive whole number"),
        ("equality", "answer_tokens", 0, "positive whole number"),
        ("equality", "workaround", -64, "0 or a positive"),
        ("equality", "dtype", "int3", "bfloat16"),
        ("trace", "trace", "/nowhere/at/all", "no file"),
    ],
)
def test_an_odd_value_is_refused_in_words(stage: str, name: str, value: Any, words: str) -> None:
    """The message names stage, parameter and value, says what fits, and shows a command line that does."""
    with pytest.raises(RunError, match=words) as caught:
        asked.check(stage, {name: value})
    assert f"{stage}.{name}=" in str(caught.value)
    assert f"-p {stage}.{name}=" in str(caught.value)


@pytest.mark.parametrize(
    ("stage", "values"),
    [
        ("sweep", {"intervals": [0, 64, 128], "lengths": list(range(100, 100_000, 100))}),
        ("equality", {"documents": 4_000}),
        ("baseline", {"lengths": list(range(100, 20_000, 100)), "configurations": ["no_mtp", "mtp"]}),
    ],
)
def test_thousands_of_sends_are_refused(stage: str, values: dict[str, Any]) -> None:
    """What lists multiply to is counted, and too much of it is refused with the count."""
    with pytest.raises(RunError, match="requests") as caught:
        asked.check(stage, values)
    assert f"{asked.MOST_SENDS:,}" in str(caught.value)


@pytest.mark.parametrize("stage", notebooks.FILES)
def test_shipped_defaults_may_be_asked(stage: str) -> None:
    """Nothing that a notebook ships with is refused."""
    asked.check(stage, {name: one.default for name, one in notebooks.parameters(stage).items()})


def test_a_dry_run_refuses_too(capsys: pytest.CaptureFixture[str]) -> None:
    """``--dry-run`` says what the run would have said, with the exit code of a wrong use."""
    assert cli.main(["run", "--dry-run", "-p", "sweep.lengths=[0]"]) == 2
    assert "positive whole number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["-p", "sweep.intervals=[7]"], 2, "retention interval 7 is not a multiple of this server's scheduler block"),
        (["-p", 'baseline.configurations=["mtp","mtp"]'], 2, "name each configuration once"),
        (["--engine", "0.33.0"], 1, "vLLM 0.33.0 has no CPU build"),
        (["--engine", "newest"], 1, "'newest' is no vLLM version"),
        (["-p", 'sweep.intervals=[0,64,"dense","default"]', "--engine", "0.30.0"], 0, ""),
        (["-p", "sweep.intervals=[7]", "--serve-cmd", "vllm serve some/model"], 0, ""),
    ],
)
def test_a_dry_run_refuses_what_the_engine_would(
    capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    """What is known of the embedded engine without starting it; another server's block is not known yet."""
    assert cli.main(["run", "--dry-run", *arguments]) == code
    assert words in capsys.readouterr().err
