#!/usr/bin/env bash
# The clients of the benchmark of many streams, for a machine without a network:
#
#     bash bench/carry.sh DEST [PYTHON]      here: DEST/p00, p01, ... of 42 MB; PYTHON: that machine's, 3.12 unless given
#     bash unpack.sh PROJECT                 there, beside all parts in one folder; with the last of them
#
# Unpacked are PROJECT/.venv with the harness and PROJECT/.vllm with aiperf, guidellm, vllm-rs and the
# tokenizer, where `bench/visit.sh` looks for them. guidellm needs the PyTorch of that machine:
# TORCH is the site-packages that has it. vLLM itself is not among them (HARNESS_VLLM).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${2:-3.12}
VLLM_OF_RUST=0.32.0 # later binaries than 0.26's have the benchmark
mkdir -p "$1"
dest=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$dest"/p[0-9][0-9]

platforms=(--platform manylinux2014_x86_64 --platform manylinux1_x86_64)
for glibc in 5 12 17 24 27 28 31 34 35 39; do
    platforms+=(--platform "manylinux_2_${glibc}_x86_64")
done
wheels() { # wheels FOLDER PIP_ARGUMENT...
    local folder=$1
    shift
    python3 -m pip download -q --no-deps --only-binary=:all: --implementation cp \
        --python-version "$python" "${platforms[@]}" -d "$work/all/$folder" "$@"
}
python3 -m venv "$work/uv"
"$work/uv/bin/pip" -q install uv
# What REQUIREMENTS take there, without PyTorch and the libraries of CUDA. nvidia-ml-py, which reads a
# GPU's counters, is none of these: the harness imports it.
pinned() { # pinned REQUIREMENTS
    "$work/uv/bin/uv" pip compile "$1" -q --no-annotate --no-header --python-version "$python" \
        --python-platform x86_64-manylinux_2_28 | grep -Pv '^(torch|triton|nvidia-(?!ml-py)|cuda-)'
}

for client in aiperf guidellm; do
    echo "$client" > "$work/in"
    pinned "$work/in" > "$work/$client"
    wheels "$client" -r "$work/$client"
done
pinned pyproject.toml > "$work/harness"
wheels harness -r "$work/harness"
wheels harness "setuptools>=77" wheel
wheels vllm "vllm==$VLLM_OF_RUST"
unzip -q -j "$work"/all/vllm/vllm-*.whl vllm/vllm-rs -d "$work/all"
rm -r "$work/all/vllm"
cp -r .vllm/tiny "$work/all/tiny"
git archive --format=tar HEAD > "$work/all/project.tar"

cat > "$work/unpack.sh" << 'UNPACK'
#!/usr/bin/env bash
set -euo pipefail
parts=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1/.vllm"
cd "$1"
home=$(mktemp -d)
cat "$parts"/part.* | tar x -I 'xz -T0' -C "$home"
tar x -f "$home/project.tar"
installed() { # installed VENV FOLDER: an environment of these wheels
    python3 -m venv "$1"
    "$1/bin/pip" install -q --no-index --no-deps "$home/$2"/*.whl
}
installed .vllm/aiperf aiperf &
installed .vllm/guidellm guidellm &
installed .venv harness
.venv/bin/pip install -q --no-index --no-deps --no-build-isolation -e .
wait
if [ -n "${TORCH:-}" ]; then
    for site in .vllm/guidellm/lib/python3*/site-packages; do
        echo "$TORCH" > "$site/torch.pth"
    done
fi
install -m 755 "$home/vllm-rs" .vllm/vllm-rs
cp -r "$home/tiny" .vllm/tiny
rm -r "$home"
for client in .venv/bin/vllm-harness .vllm/aiperf/bin/aiperf .vllm/guidellm/bin/guidellm; do
    "$client" --version > /dev/null 2>&1 && echo "$client" || echo "$client does not start"
done
UNPACK

tar c -C "$work/all" . | xz -T0 -1 | split -b 42000000 -d - "$work/part."
for part in "$work"/part.*; do
    last="$dest/p${part##*.}"
    mkdir -p "$last"
    mv "$part" "$last/"
done
cp "$work/unpack.sh" "$last/"
du -sm "$dest"/p*
