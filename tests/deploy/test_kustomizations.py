"""Kustomizations: of fields that kustomize knows, and of what the base and its manifests have."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.deploy import manifest_fields
from tests.support.deploy.checkers import run
from tests.support.deploy.manifests import (
    BASE,
    CUSTOM,
    EXAMPLE,
    MONITORING,
    OBJECTS,
    all_containers,
    generated,
    kustomization,
    model_of,
    pod_specs,
    the,
)
from tests.support.deploy.written_commands import documents_of, mappings

CONFIG_MAP_KEYS = {"configMap", "configMapRef"}
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def kustomized(folder: Path) -> list[dict[str, Any]]:
    """What would be applied."""
    return list(yaml.safe_load_all(run("kubectl", "kustomize", folder)))


def test_nothing_but_another_model_or_image_changes_the_pull_job() -> None:
    """Kubernetes refuses a change of a job."""
    reads_model = [{"configMapRef": {"name": "twinpool-model"}}]
    pod, router = (the(kind)["spec"]["template"]["spec"] for kind in ("Job", "Deployment"))
    (pull,) = pod["containers"]
    assert (pull["envFrom"], "env" in pull) == (reads_model, False)
    assert [volume["name"] for volume in pod["volumes"]] == ["models"]
    assert set(model_of(BASE)) == {"TWINPOOL_MODEL", "TWINPOOL_CACHE_DIR"}
    assert [each["envFrom"] for each in (*router["containers"], *router["initContainers"])] == [
        reads_model
    ] * 2


def test_the_model_is_named_in_one_place() -> None:
    for folder in (BASE, EXAMPLE):
        given = tomllib.loads((folder / "serve.toml").read_text())
        assert not {"model", "cache_dir"} & set(given)


@pytest.mark.parametrize("folder", [BASE, EXAMPLE, MONITORING], ids=lambda folder: folder.name)
def test_kustomize_takes_every_kustomization(folder: Path) -> None:
    document = kustomization(folder)
    assert list(manifest_fields.problems(document, manifest_fields.KUSTOMIZATION)) == []
    version, kind = ("v1alpha1", "Component") if folder == MONITORING else ("v1beta1", "Kustomization")
    assert document["apiVersion"] == f"kustomize.config.k8s.io/{version}"
    assert document["kind"] == kind
    files = [name for each in generated(folder).values() for name in each.get("files", [])]
    for name in (*document["resources"], *document.get("components", []), *files):
        assert (folder / name).exists(), name


def test_the_example_changes_configuration_maps_and_images_that_the_base_has() -> None:
    for name, each in generated(EXAMPLE).items():
        assert name in generated(BASE)
        assert each["behavior"] in ("merge", "replace")
    used = {mapping[key]["name"] for mapping in mappings(OBJECTS) for key in CONFIG_MAP_KEYS & set(mapping)}
    assert used == set(generated(BASE))
    images = {container["image"] for _, pod in pod_specs() for container in all_containers(pod)}
    assert images == {each["name"] for each in kustomization(EXAMPLE)["images"]}


def test_the_example_needs_no_operator_but_kuberay() -> None:
    """Kubernetes refuses objects of a kind that nothing has defined."""
    applied = [
        document["kind"]
        for folder in (EXAMPLE, BASE)
        for name in kustomization(folder)["resources"]
        if (folder / name).is_file()
        for document in documents_of(folder / name)
    ]
    assert "../base" in kustomization(EXAMPLE)["resources"]
    assert not kustomization(EXAMPLE).get("components")
    assert set(applied) & set(CUSTOM) == {"RayCluster"}


@needs_kubectl
def test_kustomize_gives_every_container_the_sites_image() -> None:
    built = kustomized(EXAMPLE)
    images = {
        container["image"]
        for document in built
        for mapping in mappings(document)
        for container in mapping.get("containers", [])
    }
    assert images == {f"registry.example.com/twinpool-{name}:0.2.0" for name in ("router", "worker")}
    assert {each["metadata"].get("namespace", "twinpool") for each in built} == {"twinpool"}
    (data,) = [each["data"] for each in built if each["kind"] == "ConfigMap" and "serve.toml" in each["data"]]
    assert data == {"serve.toml": (EXAMPLE / "serve.toml").read_text()}


@needs_kubectl
def test_other_settings_roll_the_router_and_leave_the_pull_job_as_it_is(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(EXAMPLE.parent, tmp_path / "kubernetes")) / EXAMPLE.name
    before = kustomized(copy)
    with (copy / "serve.toml").open("a") as file:
        file.write("# changed\n")
    after = kustomized(copy)
    assert [old["kind"] for old, new in zip(before, after, strict=True) if old != new] == [
        "ConfigMap",
        "Deployment",
    ]


@needs_kubectl
def test_monitoring_is_added_by_what_the_example_says(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(EXAMPLE.parent, tmp_path / "kubernetes")) / EXAMPLE.name
    file = copy / "kustomization.yaml"
    file.write_text(file.read_text().replace("# components:", "components:").replace("#   - ", "  - "))
    assert "ServiceMonitor" in [each["kind"] for each in kustomized(copy)]
