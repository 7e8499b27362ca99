# vllm-harness: the harness, Locust and the exporter in one image (docs/stack.md, "The image").
#   docker build --tag vllm-harness .
#   docker run --rm vllm-harness knee --embedded --slo ttft_p95=500ms
#   docker run --rm vllm-harness -f locustfiles/chat.py --master

ARG PYTHON_IMAGE=python:3.11.15-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
# a compiler for the reader's inner loop; it stays in this stage
# hadolint ignore=DL3008
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
ARG UV_VERSION=0.13.9
ENV UV_CACHE_DIR=/tmp/uv UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir -q "uv==${UV_VERSION}" \
 && python3 -m venv --without-pip /opt/harness
WORKDIR /build
COPY pyproject.toml requirements.lock ./
# What the reports need; pyarrow would double the size: `--build-arg EXTRAS=all`.
ARG EXTRAS=charts
# As a constraint the lock gives versions and hashes, which uv verifies, without what only tests need.
RUN --mount=type=cache,target=/tmp/uv /opt/uv/bin/uv pip install --quiet \
    --python /opt/harness/bin/python --constraint requirements.lock --requirements pyproject.toml \
    --extra "${EXTRAS}"
COPY README.md LICENSE ./
COPY harness harness
COPY drills drills
COPY locustfiles locustfiles
RUN --mount=type=cache,target=/tmp/uv /opt/uv/bin/uv pip install --quiet \
    --python /opt/harness/bin/python --no-deps . \
 && /opt/harness/bin/python -P -c "import harness.reader._drain, harness.records._arrays" # built, not skipped

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="vllm-harness" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 harness \
 && useradd --uid 10001 --gid harness --no-create-home --shell /usr/sbin/nologin harness \
 && install -d -o harness -g harness /srv/harness/reports
COPY --from=build /opt/harness /opt/harness
WORKDIR /srv/harness
COPY locustfiles locustfiles
ENV PATH=/opt/harness/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
COPY --chmod=755 docker/entrypoint.sh /usr/local/bin/entrypoint
COPY docker/healthy.py /opt/harness/healthy.py
USER 10001:10001
# Nothing else is written, also where the root file system is read-only.
VOLUME ["/srv/harness/reports", "/tmp"]
# Often until it is healthy, then seldom: a probe takes CPU time from a measurement.
HEALTHCHECK --interval=10s --timeout=5s --retries=3 --start-period=60s --start-interval=1s \
  CMD ["python", "-S", "-E", "/opt/harness/healthy.py"]
ENTRYPOINT ["/usr/local/bin/entrypoint"]
CMD ["--help"]
