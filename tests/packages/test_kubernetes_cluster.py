"""The Kustomize base of the cluster: every object follows the Kubernetes schemas, and the objects fit together."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from bridge.config.model import Config
from bridge.runtime import yaml_file
from bridge.service import config_files
from tests.packages.test_kubernetes import VERSIONS

CLUSTER = Path(__file__).parents[2] / "deploy/cluster"
BASE = CLUSTER / "kubernetes"
KUSTOMIZATION = yaml.safe_load((BASE / "kustomization.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    item for name in KUSTOMIZATION["resources"] for item in yaml.safe_load_all((BASE / name).read_text())
]
DEPLOYMENTS = {item["metadata"]["name"]: item["spec"] for item in OBJECTS if item["kind"] == "Deployment"}


def of(kind: str) -> list[dict[str, Any]]:
    return [item for item in OBJECTS if item["kind"] == kind]


@pytest.mark.parametrize("version", VERSIONS)
def test_objects_follow_the_schemas(version: str) -> None:
    """Strict validation: a key that Kubernetes does not know is an error."""
    import kubernetes_validate

    assert set(DEPLOYMENTS) == {"scanbridge", "scanbridge-api", "scanbridge-worker"}
    for item in OBJECTS:
        assert kubernetes_validate.validate(item, version, strict=True) == version


def test_every_part_can_lose_a_pod_and_finishes_its_mail() -> None:
    """A disruption budget, probes, a pause before SIGTERM, and more time than the drain takes."""
    assert {item["metadata"]["name"] for item in of("PodDisruptionBudget")} == set(DEPLOYMENTS)
    drain_s = yaml_file.load(BASE / "bridge.yml", Config).drain_timeout
    for spec in DEPLOYMENTS.values():
        pod = spec["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["terminationGracePeriodSeconds"] > drain_s + 5
        assert container["lifecycle"]["preStop"]["exec"]["command"] == ["sleep", "5"]
        assert {"startupProbe", "livenessProbe", "readinessProbe"} <= set(container)
        assert container["securityContext"]["readOnlyRootFilesystem"] and pod["securityContext"]["runAsNonRoot"]


def test_an_update_does_not_undo_what_the_autoscaler_did() -> None:
    """Each `kubectl apply` set the number of pods back to three, while mail was waiting for the others."""
    least = {
        item["spec"]["scaleTargetRef"]["name"]: item["spec"]["minReplicas"] for item in of("HorizontalPodAutoscaler")
    }
    for name, spec in DEPLOYMENTS.items():
        assert ("replicas" in spec) is (name not in least)
        assert least.get(name, spec.get("replicas", 1)) > 1


def test_references_resolve() -> None:
    """Files, configurations, selectors, ports and names that one object uses exist in the others."""
    generated = {item["name"]: item["files"] for item in KUSTOMIZATION["configMapGenerator"]}
    files = {
        "README.md",
        "kustomization.yaml",
        *KUSTOMIZATION["resources"],
        *(name for names in generated.values() for name in names),
    }
    assert {path.name for path in BASE.iterdir()} == files
    ports = {}
    for name, spec in DEPLOYMENTS.items():
        pod = spec["template"]["spec"]
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        mounts = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
        assert {volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume} <= set(generated)
        ports[name] = {port["name"] for port in pod["containers"][0]["ports"]}
    for service in of("Service"):
        known = ports[service["spec"]["selector"]["app.kubernetes.io/name"]]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= known
    for policy in of("NetworkPolicy"):
        known = ports[policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"]]
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == known
    for scaler in of("HorizontalPodAutoscaler"):
        assert scaler["spec"]["scaleTargetRef"]["name"] in DEPLOYMENTS
    config = yaml_file.load(BASE / "bridge.yml", Config)
    services = {service["metadata"]["name"] for service in of("Service")}
    assert {str(node.host) for node in (*config.cluster.bridges, *config.cluster.workers)} <= services


def test_bridges_find_the_api_nodes_through_a_headless_service() -> None:
    """With one address for all pods, a connection stayed at its pod, and new pods got no mail from old connections."""
    scanner = yaml_file.load(BASE / "bridge.yml", Config).scanner
    (service,) = [item for item in of("Service") if item["metadata"]["name"] == urlsplit(scanner.urls[0]).hostname]
    assert scanner.discovery is not None and scanner.discovery.records == "addresses"
    assert service["spec"]["clusterIP"] == "None" and not service["spec"].get("publishNotReadyAddresses")
    (port,) = service["spec"]["ports"]
    assert port["port"] == urlsplit(scanner.urls[0]).port
    assert service["spec"]["selector"] == DEPLOYMENTS["scanbridge-api"]["selector"]["matchLabels"]
    assert f"valid for `{service['metadata']['name']}`" in (BASE / "README.md").read_text()


def test_the_services_configuration_is_valid(tmp_path: Path) -> None:
    text = (BASE / "service.yml").read_text().replace("/run/secrets/scanbridge", str(tmp_path))
    for number, name in enumerate(("api-token", "metrics-token", "scan-database-password")):
        (tmp_path / name).write_text(f"{number}5ca11ab1e5ca11ab1e5ca11ab1e\n")
    (tmp_path / "service.yml").write_text(text)
    assert config_files.load(tmp_path / "service.yml").config.database_url.startswith("postgresql://scan:25ca11ab1e")


def test_the_secret_has_the_files_that_the_configurations_name() -> None:
    """A volume's group can read them, so libpq ignored the file with the service's password (`passfile`)."""
    texts = [(BASE / name).read_text() for name in ("bridge.yml", "service.yml")]
    named = {name for text in texts for name in re.findall(r"/run/secrets/scanbridge/([\w.-]+)", text)}
    listed = re.search(r"files: \[(api-token[^]]*)\]", (BASE / "README.md").read_text())
    assert listed is not None and set(listed[1].split(", ")) == named
    assert not any("passfile" in text for text in texts)


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_a_pod_gets_only_the_secrets_that_its_configuration_names(name: str) -> None:
    """Every pod had all of them: a worker, which opens the files of strangers, the keys of the quarantine."""
    volumes = {volume["name"]: volume for volume in DEPLOYMENTS[name]["template"]["spec"]["volumes"]}
    text = (BASE / ("bridge.yml" if name == "scanbridge" else "service.yml")).read_text()
    named = set(re.findall(r"/run/secrets/scanbridge/([\w.-]+)", text))
    items = volumes["secrets"]["secret"]["items"]
    assert {item["key"] for item in items} == {item["path"] for item in items} == named
    assert ("s3-secret-key" in named) is ("release-key" in named) is (name == "scanbridge")


def test_bridges_and_the_service_have_a_database_and_a_role_each() -> None:
    """They shared a role and its password."""
    places = [CLUSTER, CLUSTER / "compose", CLUSTER / "kubernetes"]
    for place in places:
        bridge, service = (yaml.safe_load((place / name).read_text()) for name in ("bridge.yml", "service.yml"))
        ours, theirs = urlsplit(bridge["state_database"]), urlsplit(service["database"])
        assert (ours.username, ours.path) == ("scanbridge", "/scanbridge")
        assert (theirs.username, theirs.path) == ("scan", "/scan")
        assert bridge["state_database_password_file"] != service["database_password_file"]
    rules = [line.split() for line in (CLUSTER / "pg_hba.conf").read_text().splitlines() if line.startswith("host")]
    assert [(rule[1], rule[2]) for rule in rules] == [("scanbridge", "scanbridge"), ("scan", "scan")]


def test_the_bridge_keeps_its_state_in_a_directory_of_its_own() -> None:
    """An emptyDir is writable by every user; a new directory in it is private."""
    pod = DEPLOYMENTS["scanbridge"]["template"]["spec"]
    (volume,) = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "state"]
    config = yaml_file.load(BASE / "bridge.yml", Config)
    assert Path(config.state_directory or volume).parent == Path(volume)
