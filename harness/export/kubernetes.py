"""The same threshold for a Kubernetes autoscaler: KEDA's ScaledObject with a Prometheus trigger.

KEDA asks Prometheus for the query and gives the answer to the HorizontalPodAutoscaler as an
external metric of type AverageValue: replicas = ceil(query / threshold).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from harness.export.rules import in_flight

if TYPE_CHECKING:
    from harness.export.threshold import Threshold


def scaled_object(threshold: Threshold, deployment: str, prometheus: str, most: int) -> str:
    """YAML for `kubectl apply`: at most `most` replicas of a Deployment."""
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
            f"  maxReplicaCount: {most}",
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
