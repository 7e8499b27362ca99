#!/usr/bin/env bash
# The measurement of many streams on a quiet machine, in calls of ten minutes at most:
#
#     bash bench/visit.sh [SECONDS] [FOLDER]      570 unless given; again, until it says it is done
#     bash bench/visit.sh soak [FOLDER]           eight minutes at 4,096 streams
#     bash bench/visit.sh hosts [FOLDER]          half a minute of 4,096 streams from two hosts (root)
#
# Run it in the root of the repository. It uses .venv, or PYTHON. The page, the picture and what the
# next call goes on with are copied to FOLDER, if one is given.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
what=${1:-570}
folder=${2:-}
results=bench/results
# A socket for each stream in one C client or one server, and those of ours.
ulimit -n "$(ulimit -Hn)"
code=0
if [ "$what" = soak ]; then
    page=$results/soak-streams
    PYTHONPATH=. "$python" bench/soak.py --streams 4096 --minutes 8 --page $page.md || code=$?
elif [ "$what" = hosts ]; then
    page=$results/hosts
    PYTHONPATH=. "$python" bench/two_hosts.py --streams 4096 --page $page.md || code=$?
else
    page=$results/streams
    PYTHONPATH=. "$python" bench/streams.py --seconds "$what" --page $page.md || code=$?
fi
if [ -n "$folder" ]; then
    for end in md json svg; do
        [ ! -f "$page.$end" ] || cp "$page.$end" "$folder"
    done
fi
exit "$code"
