#!/usr/bin/env bash
# The measurement of many streams on a quiet machine, in calls of ten minutes at most:
#
#     bash bench/visit.sh [SECONDS] [FOLDER]      570 unless given; again, until it says it is done
#     bash bench/visit.sh soak [FOLDER] [MINUTES] 20 minutes unless given, at 4,096 streams
#     bash bench/visit.sh hosts [FOLDER]          half a minute of 4,096 streams from two hosts (root)
#     bash bench/visit.sh all [FOLDER] [MINUTES]  all of that in one call, side by side on 32 cores
#
# Run it in the root of the repository. It uses .venv, or PYTHON. The page, the picture and what the
# next call goes on with are copied to FOLDER, if one is given. PAGE names the page without its
# ending: a second visit is `streams-2`, and the page `streams` shows both. CORES is a part of the
# machine, so that its two halves measure side by side:
#
#     CORES=0-15  PAGE=streams   bash bench/visit.sh &
#     CORES=16-31 PAGE=streams-2 bash bench/visit.sh
#
# `all` gives a fifth of the cores to the long run and shares the others out among two visits, whose
# cores then go to the two hosts: half an hour.
set -euo pipefail
python=${PYTHON:-.venv/bin/python}
what=${1:-570}
folder=${2:-}
results=bench/results
if [ "$what" = all ]; then
    cores=$(nproc)
    if [ "$cores" -lt 32 ]; then
        echo "This machine has $cores cores: expected 32 for \`all\`; try one part at a time." >&2
        exit 2
    fi
    # Ctrl-C does not reach what runs in the background of a script.
    trap 'trap - TERM; kill 0' INT TERM
    first=$((cores / 5))
    second=$((first + (cores - first) / 2))
    CORES=0-$((first - 1)) bash "$0" soak "$folder" "${3:-20}" &
    long_run=$!
    CORES=$first-$((second - 1)) PAGE=streams bash "$0" 1200 "$folder" &
    visits=($!)
    CORES=$second-$((cores - 1)) PAGE=streams-2 bash "$0" 1200 "$folder" &
    visits+=($!)
    code=0
    for one in "${visits[@]}"; do
        wait "$one" || code=$?
    done
    CORES=$first-$((cores - 1)) bash "$0" hosts "$folder" || code=$?
    wait "$long_run" || code=$?
    exit "$code"
fi
on=()
[ -z "${CORES:-}" ] || on=(taskset --cpu-list "$CORES")
export PYTHONPATH=.
# A socket for each stream in one C client or one server, and those of ours.
ulimit -n "$(ulimit -Hn)"
if [ "$what" = soak ]; then
    page=$results/${PAGE:-soak-streams}
    command=(bench/soak.py --streams 4096 --minutes "${3:-20}")
elif [ "$what" = hosts ]; then
    page=$results/${PAGE:-hosts}
    command=(bench/two_hosts.py --streams 4096)
else
    page=$results/${PAGE:-streams}
    command=(bench/streams.py --seconds "$what")
fi
code=0
"${on[@]}" "$python" "${command[@]}" --page "$page.md" || code=$?
if [ -n "$folder" ]; then
    for end in md json svg; do
        [ ! -f "$page.$end" ] || cp "$page.$end" "$folder"
    done
fi
exit "$code"
