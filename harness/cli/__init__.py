"""Layer 13: the subcommands. Each parses, calls one function, and maps errors to exit codes."""

from harness.cli.app import command, main

__all__ = ["command", "main"]
