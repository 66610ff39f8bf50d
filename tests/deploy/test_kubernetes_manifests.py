"""Kubernetes manifests: each valid by its schema, and in agreement with each other and with the program."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.scripts.scripts import start as ray_start

from router.faces.grpc.health import INFERENCE
from tests.support.deploy import manifest_fields
from tests.support.deploy.checkers import PROGRAMS, run
from tests.support.deploy.manifests import (
    BASE,
    CUSTOM,
    EXAMPLE,
    OBJECTS,
    all_containers,
    model_of,
    pod_specs,
    the,
)
from tests.support.deploy.written_commands import DEPLOY, documents_of, mappings
from tests.support.paths import ROOT
from twinpool.cli.configuration import load_config
from twinpool.config import ServeConfig
from twinpool.types import Pool

KUBERNETES_VERSION = "1.34.0"


def groups() -> Mapping[Pool, dict[str, Any]]:
    """The node group of each pool."""
    specs = the("RayCluster")["spec"]["workerGroupSpecs"]
    return {Pool(spec["groupName"]): spec for spec in specs}


@pytest.fixture(params=[BASE, EXAMPLE], ids=["base", "example"])
def config(request: pytest.FixtureRequest) -> ServeConfig:
    environment = model_of(BASE) | model_of(request.param)
    return load_config(file=request.param / "serve.toml", environment=environment)


@pytest.mark.clients
def test_kubernetes_takes_every_object(tmp_path: Path) -> None:
    known = [each for each in OBJECTS if each["kind"] not in CUSTOM]
    spec = the("RayCluster")["spec"]
    for index, group in enumerate((spec["headGroupSpec"], *spec["workerGroupSpecs"])):
        pods = {"kind": "PodTemplate", "metadata": {"name": f"group-{index}"}, "template": group["template"]}
        known.append({"apiVersion": "v1"} | pods)
    file = tmp_path / "objects.yaml"
    file.write_text(yaml.safe_dump_all(known))
    run(PROGRAMS / "kubernetes-validate", "--strict", "-k", KUBERNETES_VERSION, file)
    assert len(known) > 10


def test_kuberay_takes_the_cluster() -> None:
    cluster = the("RayCluster")
    fields = manifest_fields.RAY_CLUSTER
    assert list(manifest_fields.problems(cluster, fields)) == []
    assert cluster["spec"]["autoscalerOptions"]["version"] == "v2"
    assert cluster["spec"]["enableInTreeAutoscaling"] is True
    broken = cluster | {"spec": cluster["spec"] | {"rayVersion": 2.6, "workerGroups": []}}
    assert list(manifest_fields.problems(broken, fields)) == [
        ".spec.rayVersion is float, not str",
        ".spec.workerGroups is unknown",
    ]


def test_the_prometheus_operator_takes_the_monitor() -> None:
    assert list(manifest_fields.problems(the("ServiceMonitor"), manifest_fields.SERVICE_MONITOR)) == []
    (endpoint,) = the("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in the("Service")["spec"]["ports"]]


def test_ray_takes_the_options_that_nodes_are_started_with() -> None:
    spec = the("RayCluster")["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        ray_start.make_context(
            "start", [f"--{key}={value}" for key, value in group["rayStartParams"].items()]
        )


def test_the_clusters_ray_is_the_images() -> None:
    pinned = re.findall(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert [the("RayCluster")["spec"]["rayVersion"]] == pinned


@pytest.mark.parametrize("pod", [pod for _, pod in pod_specs()], ids=[name for name, _ in pod_specs()])
def test_every_pod_is_nobody_in_particular_and_gets_no_variables_of_services(pod: dict[str, Any]) -> None:
    assert pod["enableServiceLinks"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in all_containers(pod):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    claimed = {volume["name"]: volume for volume in pod.get("volumes", [])}
    mounted = {mount["name"] for each in pod["containers"] for mount in each.get("volumeMounts", [])}
    assert mounted == set(claimed)


def test_everybody_in_the_ray_cluster_shows_the_same_secret() -> None:
    environments = [
        {each["name"]: each for each in mapping["env"]}
        for document in OBJECTS
        for mapping in mappings(document)
        if any(each["name"].startswith("RAY_") for each in mapping.get("env", []))
    ]
    assert len(environments) == 5  # router, head, autoscaler, two groups
    for environment in environments:
        assert environment["RAY_AUTH_MODE"]["value"] == "token"
        secret = environment["RAY_AUTH_TOKEN"]["valueFrom"]["secretKeyRef"]
        assert secret == {"name": "twinpool-ray", "key": "token"}


def test_workers_find_a_node_of_their_pool_and_the_model_on_it(config: ServeConfig) -> None:
    for pool, group in groups().items():
        wants = config.resources(pool)
        assert wants.labels == group["labels"]
        assert wants.cpus == float(group["resources"]["CPU"]) == wants.threads
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        assert float(container["resources"]["limits"]["cpu"]) == wants.cpus
        assert str(config.cache_dir) in [mount["mountPath"] for mount in container["volumeMounts"]]
        num_workers = {Pool.PREFILL: config.prefill, Pool.DECODE: config.decode}[pool]
        assert group["minReplicas"] <= num_workers <= group["maxReplicas"]
    assert set(groups()) == set(Pool)


def test_the_router_is_probed_where_it_listens_and_has_time_to_end_its_streams(config: ServeConfig) -> None:
    deployment = the("Deployment")["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    pod = deployment["template"]["spec"]
    (router,) = pod["containers"]
    program, seconds = router["lifecycle"]["preStop"]["exec"]["command"]
    assert program == "sleep"
    assert pod["terminationGracePeriodSeconds"] >= float(seconds) + config.router.grace_s + 30
    assert router["startupProbe"]["grpc"] == router["livenessProbe"]["grpc"] == {"port": config.port}
    assert router["readinessProbe"]["grpc"] == {"port": config.port, "service": INFERENCE}
    ports = {port["name"]: port["containerPort"] for port in router["ports"]}
    assert ports == {"grpc": config.port, "metrics": config.metrics_port}
    assert config.host == config.metrics_host == "0.0.0.0"
    assert config.ops_host == "127.0.0.1"
    head = next(each["value"] for each in router["env"] if each["name"] == "RAY_HEAD")
    assert head == f"{the('RayCluster')['metadata']['name']}-head-svc:6379"


def test_services_monitors_and_budgets_select_what_there_is() -> None:
    router = the("Deployment")["spec"]["template"]["metadata"]["labels"]
    cluster = the("RayCluster")["metadata"]["name"]
    selected = [
        {"ray.io/cluster": cluster, "ray.io/node-type": "head"},
        *({"ray.io/cluster": cluster, "ray.io/group": pool.value} for pool in groups()),
        router,
    ]
    assert the("Service")["spec"]["selector"] == router
    assert the("ServiceMonitor")["spec"]["selector"]["matchLabels"] == the("Service")["metadata"]["labels"]
    budgets = [each["spec"] for each in OBJECTS if each["kind"] == "PodDisruptionBudget"]
    assert len(budgets) == len(selected)
    assert all(budget["selector"]["matchLabels"] in selected for budget in budgets)
    job = documents_of(DEPLOY / "prometheus" / "prometheus.yaml")[0]["scrape_configs"][0]["job_name"]
    (endpoint,) = the("ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["relabelings"] == [{"targetLabel": "job", "replacement": job}]
