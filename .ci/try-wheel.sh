#!/bin/sh
# try-wheel.sh WHEEL: in a bare container with Python: install the wheel alone, use what it brings.
#
# The last line is the size of the environment, which a load worker needs. UV: a path of uv,
# which installs faster than pip.
set -eu
export HOME=/tmp
cd /tmp
python3 -m venv ${UV:+--without-pip} venv
if [ -n "${UV:-}" ]; then
  "$UV" pip install --quiet --compile-bytecode --python venv/bin/python "$1"
else
  venv/bin/pip install --quiet --disable-pip-version-check "$1"
fi
MB=$(du -sm venv | cut -f 1)
PATH=/tmp/venv/bin:$PATH

# fails WANTED SENTENCE COMMAND...: it ends with this code and says this
fails() {
  wanted=$1 sentence=$2 code=0
  shift 2
  "$@" > said 2>&1 || code=$?
  grep -qF "$sentence" said && [ "$code" = "$wanted" ] || {
    echo "$*: exit code $code, expected $wanted and \"$sentence\"; it said:"
    cat said
    exit 1
  }
}

python -W error -c "import harness.reader._drain, harness.records._arrays" # C, not skipped
fails 0 "pyarrow is not installed; try \`pip install 'vllm-harness[parquet]'\`" \
  vllm-harness knee --embedded --slo ttft_p50=500ms --budget 10s --max-users 2 \
  --prompt-tokens 16 --output-tokens 8 --out run
fails 0 "take JavaScript and cannot be printed: dukpy is not installed" vllm-harness report run
for file in result.json report.md report.html levels.csv; do test -s "run/$file"; done
fails 1 "harness.open_run cannot be used: pandas and pyarrow are not installed" \
  python -c "import harness; harness.open_run('run')"
vllm-harness locustfile chat > locustfile.py
locust -f locustfile.py --list > said
cmp locustfile.py "$(vllm-harness locustfile chat --path)"
vllm-harness drill overload --dry-run > said
fails 2 "one of cold-restart, " vllm-harness drill nothing
echo "$(python --version): an environment of $MB MB"
