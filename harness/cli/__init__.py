"""Layer 5: one file per subcommand: parse, call one function, map errors to exit codes."""

from harness.cli.app import command, main

__all__ = ["command", "main"]
