"""Makes ``data/sample/run`` of a finished run directory: rows, traces and manifest, with folders shortened.

``python tests/data/make_sample.py RUN``
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

SAMPLE = Path(__file__).parents[2] / "data" / "sample" / "run"
FOLDERS = {"CACHE": r"(/[^\s\"'=:]*?)/engines/vllm-", "DATA": r"(/[^\s\"'=:]*?)/models/gemma4-small/"}
"""What stands for a folder → how the folder is found in the run's manifest."""
LEFT = re.compile(r"""[\s="'](/(?:[\w.-]+/){2,}\S*)""")


def make_sample(run: Path, sample: Path = SAMPLE) -> None:
    """Copy what the notebooks and reports read.

    Raises
    ------
    SystemExit
        where an absolute path is left.
    """
    manifest = (run / "run.json").read_text()
    names = {str(run): "RUN"}
    for name, pattern in FOLDERS.items():
        names |= dict.fromkeys(re.findall(pattern, manifest), name)
    shutil.rmtree(sample, ignore_errors=True)
    for source in [run / "run.json", *sorted(run.glob("raw/*.jsonl")), *sorted(run.glob("trace/*.jsonl"))]:
        text = source.read_text()
        for folder in sorted(names, key=len, reverse=True):
            text = text.replace(folder, names[folder])
        if found := LEFT.search(text):
            raise SystemExit(f"{source.name} still names the path {found[1]}")
        target = sample / source.relative_to(run)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)


if __name__ == "__main__":
    make_sample(Path(sys.argv[1]).resolve())
