"""`--otlp`: where a run's metrics go, checked before any load."""

from __future__ import annotations

import os
from typing import Final

from harness.core.extras import need_extra
from harness.errors import ConfigError
from harness.export.web_url import web_url

FROM_ENVIRONMENT: Final = "env"
PATH: Final = "/v1/metrics"  # of OTLP over HTTP
PROTOCOL: Final = "http/protobuf"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")


def otlp_endpoint(text: str) -> str:
    """The URL that metrics are sent to, or `env`. Raises ConfigError, MissingPackage."""
    given = text.strip()
    need_extra("otlp", "--otlp")
    if given == FROM_ENVIRONMENT:
        _check_environment()
        return given
    parts = web_url(given)
    if parts is None or parts.username or parts.query:
        # Not quoted: a user or a query may be a secret.
        raise ConfigError(
            "--otlp is no URL that can be used: expected http:// or https:// with a host, without "
            "a user or a query, as keys belong in OTEL_EXPORTER_OTLP_HEADERS; try --otlp "
            "http://127.0.0.1:4318."
        )
    path = parts.path.rstrip("/")
    if not path.endswith(PATH):
        path += PATH
    return f"{parts.scheme}://{parts.netloc}{path}"


def _check_environment() -> None:
    """Whether OpenTelemetry's own variables name a collector that takes what we send."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        raise ConfigError(
            f"--otlp is 'env' and {ENDPOINTS[1]} is not set: expected the collector's URL in it; "
            f"try export {ENDPOINTS[1]}=http://127.0.0.1:4318."
        )
    for name in PROTOCOLS:
        protocol = os.environ.get(name)
        if protocol and protocol != PROTOCOL:
            raise ConfigError(
                f"{name} is {protocol!r}: expected {PROTOCOL}, on the collector's port 4318; try "
                f"{name}={PROTOCOL}."
            )
