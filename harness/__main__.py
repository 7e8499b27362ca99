"""`python -m harness` is the command `vllm-harness`."""

import sys

from harness.cli import main

if __name__ == "__main__":  # a spawned child imports this file again under another name
    sys.exit(main())
