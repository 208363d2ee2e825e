"""Two or more runs next to each other: what changed in settings first, then in results, and what is noise."""

from prefixscope.comparison.markdown import to_markdown
from prefixscope.comparison.sheet import render_comparison
from prefixscope.comparison.text import to_text
from prefixscope.comparison.whole import Comparison, compare, to_json
from prefixscope.comparison.words import sentence

__all__ = ["Comparison", "compare", "render_comparison", "sentence", "to_json", "to_markdown", "to_text"]
