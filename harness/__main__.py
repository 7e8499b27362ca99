"""`python -m harness` is the command `vllm-harness`."""

from harness.cli import command

if __name__ == "__main__":  # a spawned child imports this file again under another name
    command()
