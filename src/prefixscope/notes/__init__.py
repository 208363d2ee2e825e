"""A run in the forms that people send on: an incident note, a bug report for vLLM, CSV with its columns explained."""

from prefixscope.notes.for_issue import write_issue
from prefixscope.notes.frame_files import write_csv
from prefixscope.notes.incident import write_incident

__all__ = ["write_csv", "write_incident", "write_issue"]
