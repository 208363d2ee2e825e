"""The command line. The only folder whose modules print or exit."""

from prefixscope.cli.entry import build_parser, main

__all__ = ["build_parser", "main"]
