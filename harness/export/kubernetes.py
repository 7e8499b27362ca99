"""The threshold for a Kubernetes autoscaler: KEDA's ScaledObject with a Prometheus trigger.

KEDA runs the query against Prometheus and passes the result to the HorizontalPodAutoscaler as an
external metric of type AverageValue: replicas = ceil(query / threshold).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harness.export.alert_rules import in_flight

if TYPE_CHECKING:
    from harness.export.threshold import Threshold


def scaled_object(threshold: Threshold, deployment: str, prometheus: str, max_replicas: int) -> str:
    """Return YAML for `kubectl apply` that scales a Deployment."""
    query = in_flight(threshold.model)
    return "\n".join(
        [
            f"# {threshold.sentence}",
            "# A replica takes minutes to load: lower the threshold to leave room meanwhile.",
            "apiVersion: keda.sh/v1alpha1",
            "kind: ScaledObject",
            "metadata:",
            f"  name: {json.dumps(deployment)}",
            "spec:",
            "  scaleTargetRef:",
            f"    name: {json.dumps(deployment)}",
            "  minReplicaCount: 1",
            f"  maxReplicaCount: {max_replicas}",
            "  triggers:",
            "    - type: prometheus",
            "      metricType: AverageValue",
            "      metadata:",
            f"        serverAddress: {json.dumps(prometheus)}",
            f"        query: {json.dumps(query)}",
            f'        threshold: "{threshold.requests}"',
            "",
        ]
    )
