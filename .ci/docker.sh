#!/usr/bin/env bash
# docker.sh DIR: what tests/test_stack_compose.py needs: Docker with Compose, and the base images.
#
# Where Docker runs and can pull them, that is all. Else, as root on Debian 12, an engine of its own
# starts below DIR, and the two base images are made of Debian's packages under the official names.
# Then `. DIR/env` tells docker where it is. Stop it: docker compose down; kill $(cat DIR/dockerd.pid)
set -euo pipefail
mkdir -p "$1"
W=$(cd "$1" && pwd)
TOP=$(cd "$(dirname "$0")/.." && pwd)
PYTHON=$(sed -n 's/^ARG PYTHON_IMAGE=//p' "$TOP/Dockerfile")
PROMETHEUS=$(sed -n 's/^ *image: \(prom\/prometheus:.*\)/\1/p' "$TOP/docker-compose.yml")
say() { echo "[$SECONDS s] $*"; }

if { docker compose version && docker pull -q "$PYTHON" && docker pull -q "$PROMETHEUS"; } \
  > /dev/null 2>&1; then
  : > "$W/env"
  say "Docker is here, and images can be pulled"
  exit 0
fi
[ "$(id -u)" = 0 ] || { say "no Docker that can pull images, and to start one takes root"; exit 1; }
MIRROR=$({ cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2> /dev/null || true; } \
  | grep -oE 'https?://[^ ]+/debian/?( |$)' | awk 'NR==1 {print $1}')
[ -n "$MIRROR" ] || { say "no Docker that can pull images, and this is not Debian"; exit 1; }

export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends docker.io mmdebstrap > /dev/null 2>&1
say "the engine's base packages"

# like the official image: Python with its headers, and a C compiler, which saves a minute of apt later
mmdebstrap --quiet --mode=root --variant=apt --dpkgopt=force-unsafe-io \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --include=ca-certificates,python3,python3-venv,python3-dev,gcc,libc6-dev \
  bookworm "$W/base.tar" "$MIRROR" > "$W/base.log" 2>&1 &
base=$!

# Debian 12 has no Compose v2, and its engine is too old for start_interval: later releases' packages
# are unpacked beside it, not installed.
mkdir -p "$W"/{apt/lists/partial,apt/cache/archives/partial,deb,x,cli/cli-plugins}
for release in trixie forky; do
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $MIRROR $release main"
done > "$W/apt/sources.list"
later=(-qq -o "Dir::Etc::sourcelist=$W/apt/sources.list" -o Dir::Etc::sourceparts=-
  -o "Dir::State::lists=$W/apt/lists" -o "Dir::Cache=$W/apt/cache" -o APT::Sandbox::User=root)
apt-get "${later[@]}" update
(cd "$W/deb" && apt-get "${later[@]}" download docker.io/trixie containerd/trixie \
  docker-buildx/forky docker-compose/forky prometheus/forky promtool/forky)
for deb in "$W"/deb/*.deb; do dpkg -x "$deb" "$W/x"; done
cp "$W"/x/usr/libexec/docker/cli-plugins/* "$W/cli/cli-plugins/"
say "engine, Compose, buildx and Prometheus unpacked"

cat > "$W/env" <<EOF
export DOCKER_HOST=unix://$W/docker.sock DOCKER_CONFIG=$W/cli
EOF
# shellcheck source=/dev/null
. "$W/env"
PATH=$W/x/usr/bin:$W/x/usr/sbin:$PATH setsid nohup dockerd -H "unix://$W/docker.sock" --data-root "$W/root" --exec-root "$W/exec" \
  --pidfile "$W/dockerd.pid" --userland-proxy-path "$W/x/usr/sbin/docker-proxy" --ip 127.0.0.1 \
  > "$W/dockerd.log" 2>&1 &
for _ in $(seq 100); do docker version > /dev/null 2>&1 && break; sleep 0.1; done
docker version > /dev/null || { say "dockerd did not start: $(tail -n 1 "$W/dockerd.log")"; exit 1; }

wait "$base" || { say "no base image: $(tail -n 1 "$W/base.log")"; exit 1; }
say "the base image's files"
certificates=/etc/ssl/certs/ca-certificates.crt # this machine's, behind whose proxy builds may be
docker import --change "ENV PIP_CERT=$certificates SSL_CERT_FILE=$certificates" \
  "$W/base.tar" debian-python > /dev/null
cp "$certificates" "$W/x/certificates.crt"
docker build -q --tag "$PYTHON" -f- "$W/x" > /dev/null <<EOF
FROM debian-python
COPY certificates.crt $certificates
RUN ln -sf python3 /usr/bin/python
EOF
docker build -q --tag "$PROMETHEUS" -f- "$W/x/usr/bin" > /dev/null <<EOF
FROM $PYTHON
COPY prometheus promtool /bin/
RUN install -d -o nobody -g nogroup /prometheus
USER nobody
ENTRYPOINT ["/bin/prometheus"]
EOF
rm -rf "$W/base.tar" "$W/deb" "$W/apt"
say "dockerd $(docker version --format '{{.Server.Version}}'), $PYTHON and $PROMETHEUS"
