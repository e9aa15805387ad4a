"""The Kustomize base: every object follows the Kubernetes schemas, and the objects fit together."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from bridge.config.model import Config
from bridge.runtime import yaml_file
from bridge.service import config_files
from tests.long_cases import few

BASE = Path(__file__).parents[2] / "deploy/kubernetes"
KUSTOMIZATION = yaml.safe_load((BASE / "kustomization.yaml").read_text())
OBJECTS: list[dict[str, Any]] = [
    item for name in KUSTOMIZATION["resources"] for item in yaml.safe_load_all((BASE / name).read_text())
]
VERSIONS = ["1.28", "1.34"]


def of(kind: str) -> list[dict[str, Any]]:
    return [item for item in OBJECTS if item["kind"] == kind]


@pytest.mark.parametrize("version", few(VERSIONS, 1))
def test_objects_follow_the_schemas(version: str) -> None:
    """Strict validation: a key that Kubernetes does not know is an error."""
    import kubernetes_validate  # which takes seconds: not in processes that run other tests

    assert of("StatefulSet") and of("Service")
    for item in OBJECTS:
        assert kubernetes_validate.validate(item, version, strict=True) == version  # exactly this schema version


def test_an_invalid_object_is_detected() -> None:
    """Proves that the test above can fail."""
    import kubernetes_validate

    wrong = copy.deepcopy(of("StatefulSet")[0])
    wrong["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_references_resolve() -> None:
    """Files, configurations, selectors and ports that one object names exist in the others."""
    here = {path.name for path in BASE.iterdir()}
    generated = {item["name"]: item["files"] for item in KUSTOMIZATION["configMapGenerator"]}
    assert here == {
        "README.md",
        "kustomization.yaml",
        *KUSTOMIZATION["resources"],
        *(file for files in generated.values() for file in files),
    }
    pods = {}
    for stateful_set in of("StatefulSet"):
        labels, pod = stateful_set["spec"]["template"]["metadata"]["labels"], stateful_set["spec"]["template"]["spec"]
        assert stateful_set["spec"]["selector"]["matchLabels"] == labels
        (container,) = pod["containers"]
        volumes = {volume["name"] for volume in pod["volumes"]} | {
            claim["metadata"]["name"] for claim in stateful_set["spec"]["volumeClaimTemplates"]
        }
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes
        for volume in pod["volumes"]:
            assert volume.get("configMap", {}).get("name") in {None, *generated}
        assert stateful_set["spec"]["serviceName"] in {service["metadata"]["name"] for service in of("Service")}
        pods[labels["app.kubernetes.io/name"]] = {port["name"] for port in container["ports"]}
    for service in of("Service"):
        ports = pods[service["spec"]["selector"]["app.kubernetes.io/name"]]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for policy in of("NetworkPolicy"):
        ports = pods[policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"]]
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == ports


def test_pods_are_confined() -> None:
    """The restricted profile, a read-only root, and enough time to finish mail in processing."""
    for stateful_set in of("StatefulSet"):
        pod = stateful_set["spec"]["template"]["spec"]
        own = pod["containers"][0]["securityContext"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]
        assert own["readOnlyRootFilesystem"] and own["capabilities"]["drop"] == ["ALL"]
        assert own["allowPrivilegeEscalation"] is False and not pod["automountServiceAccountToken"]
    bridge = of("StatefulSet")[0]["spec"]["template"]["spec"]
    drain_s = yaml_file.load(BASE / "bridge.yml", Config).drain_timeout
    assert bridge["terminationGracePeriodSeconds"] > drain_s


def test_configurations_are_valid(tmp_path: Path) -> None:
    """The service's configuration, with a token in place (the bridge's is tested with all the others)."""
    token = tmp_path / "token"
    token.write_text("5ca11ab1e" * 7 + "0\n")
    text = (BASE / "service.yml").read_text().replace("/run/secrets/scanbridge/token", str(token))
    (tmp_path / "service.yml").write_text(text)
    assert config_files.load(tmp_path / "service.yml")
