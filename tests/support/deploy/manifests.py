"""The Kubernetes manifests and kustomizations, as tests read them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.deploy.written_commands import DEPLOY, documents_of, mappings

BASE, EXAMPLE, MONITORING = (DEPLOY / "kubernetes" / name for name in ("base", "example", "monitoring"))
OBJECTS = [
    document
    for file in sorted((DEPLOY / "kubernetes").rglob("*.yaml"))
    if file.name != "kustomization.yaml"
    for document in documents_of(file)
]
CUSTOM = ("RayCluster", "ServiceMonitor")


def the(kind: str, name: str | None = None) -> dict[str, Any]:
    """The one object of a kind, or of a kind and name."""
    (found,) = [each for each in OBJECTS if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return dict(found)


def pod_specs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pod that the manifests describe, with a name for it."""
    for each in OBJECTS:
        for mapping in mappings(each):
            if "containers" in mapping:
                yield f"{each['kind']}: {mapping['containers'][0]['name']}", mapping


def all_containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of a pod, with those that run before."""
    return [*pod["containers"], *pod.get("initContainers", [])]


def kustomization(folder: Path) -> dict[str, Any]:
    """A folder's."""
    (document,) = documents_of(folder / "kustomization.yaml")
    return dict(document)


def generated(folder: Path) -> dict[str, dict[str, Any]]:
    """A folder's generated configuration maps, by name."""
    return {each["name"]: each for each in kustomization(folder).get("configMapGenerator", [])}


def model_of(folder: Path) -> dict[str, str]:
    """The variables that name the model."""
    return dict(each.split("=", 1) for each in generated(folder)["twinpool-model"]["literals"])
