"""The fields that our manifests may use of what Kubernetes' own schema does not know, with their types.

That is KubeRay's RayCluster (ray.io/v1, KubeRay 1.5), the Prometheus operator's ServiceMonitor
(monitoring.coreos.com/v1) and kustomizations. Pod templates are Kubernetes' own and checked by its schema;
here they are any mapping.
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
SERVICE_MONITOR: Mapping[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "metadata": dict,
    "spec": {
        "selector": {"matchLabels": _TEXTS},
        "endpoints": [
            {
                "port": str,
                "path": str,
                "interval": str,
                "scrapeTimeout": str,
                "relabelings": [
                    {
                        "sourceLabels": [str],
                        "targetLabel": str,
                        "regex": str,
                        "replacement": str,
                        "action": str,
                    }
                ],
            }
        ],
    },
}
KUSTOMIZATION: Mapping[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "namespace": str,
    "resources": [str],
    "components": [str],
    "images": [{"name": str, "newName": str, "newTag": str, "digest": str}],
    "configMapGenerator": [{"name": str, "behavior": str, "files": [str], "literals": [str]}],
    "labels": [{"pairs": _TEXTS, "includeSelectors": bool, "includeTemplates": bool}],
}


def problems(value: Any, fields: Any, path: str = "") -> Iterator[str]:
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
