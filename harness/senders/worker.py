"""`python -m harness.senders.worker PORT`: a load process, with imports that take less long."""

from __future__ import annotations

import sys

from harness.core.entry_points import entry_points_read_once

with entry_points_read_once():
    from harness.senders.worker_process import main

if __name__ == "__main__":
    main(int(sys.argv[1]))
