#!/usr/bin/env bash
# The measurement of many streams on a quiet machine, in calls of ten minutes at most:
#
#     bash bench/visit.sh [SECONDS] [FOLDER]      570 unless given; again, until it says it is done
#     bash bench/visit.sh soak [FOLDER]           eight minutes at 4,096 streams
#
# Run it in the root of the repository. It uses .venv, or PYTHON. The page, the picture and what the
# next call goes on with are copied to FOLDER, if one is given. PAGE names the page without its
# ending: a second visit is `streams-2`, and the page `streams` shows both. CORES is a part of the
# machine, so that its two halves measure side by side:
#
#     CORES=0-15  PAGE=streams   bash bench/visit.sh &
#     CORES=16-31 PAGE=streams-2 bash bench/visit.sh
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
what=${1:-570}
folder=${2:-}
results=bench/results
on=()
[ -z "${CORES:-}" ] || on=(taskset --cpu-list "$CORES")
export PYTHONPATH=.
# A socket for each stream in one C client or one server, and those of ours.
ulimit -n "$(ulimit -Hn)"
code=0
if [ "$what" = soak ]; then
    page=$results/${PAGE:-soak-streams}
    "${on[@]}" "$python" bench/soak.py --streams 4096 --minutes 8 --page "$page.md" || code=$?
else
    page=$results/${PAGE:-streams}
    "${on[@]}" "$python" bench/streams.py --seconds "$what" --page "$page.md" || code=$?
fi
if [ -n "$folder" ]; then
    for end in md json svg; do
        [ ! -f "$page.$end" ] || cp "$page.$end" "$folder"
    done
fi
exit "$code"
