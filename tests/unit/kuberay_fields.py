"""The fields of KubeRay's RayCluster (ray.io/v1, KubeRay 1.5) that our manifests may use, with their types.

Pod templates are Kubernetes' own and checked by its schema; here they are any mapping.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_TEXTS = {"*": str}
_WORKER_GROUP = {
    "groupName": str,
    "replicas": int,
    "minReplicas": int,
    "maxReplicas": int,
    "idleTimeoutSeconds": int,
    "labels": _TEXTS,
    "resources": _TEXTS,
    "rayStartParams": _TEXTS,
    "template": dict,
}
RAY_CLUSTER: Mapping[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "metadata": dict,
    "spec": {
        "rayVersion": str,
        "enableInTreeAutoscaling": bool,
        "autoscalerOptions": {
            "version": str,
            "idleTimeoutSeconds": int,
            "upscalingMode": str,
            "resources": dict,
            "securityContext": dict,
            "env": list,
        },
        "headGroupSpec": {
            "labels": _TEXTS,
            "resources": _TEXTS,
            "rayStartParams": _TEXTS,
            "template": dict,
        },
        "workerGroupSpecs": [_WORKER_GROUP],
    },
}


def problems(value: Any, fields: Any = RAY_CLUSTER, path: str = "") -> Iterator[str]:
    """What is unknown or of another type, each with its path."""
    if isinstance(fields, list):
        if not isinstance(value, list):
            yield f"{path} is no list"
            return
        for index, each in enumerate(value):
            yield from problems(each, fields[0], f"{path}[{index}]")
    elif isinstance(fields, Mapping):
        if not isinstance(value, dict):
            yield f"{path} is no mapping"
            return
        for name, each in value.items():
            kind = fields.get(name, fields.get("*"))
            if kind is None:
                yield f"{path}.{name} is unknown"
            else:
                yield from problems(each, kind, f"{path}.{name}")
    elif type(value) is not fields:
        yield f"{path} is {type(value).__name__}, not {fields.__name__}"
