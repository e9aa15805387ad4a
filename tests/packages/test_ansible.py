"""The Ansible role: ansible-lint and Ansible itself find no errors. `make test-systemd` applies it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from bridge.config.model import Config
from bridge.runtime import yaml_file
from bridge.service import config_files
from bridge.testing import free_port
from tests.daemon.process_kit import running
from tests.long_cases import few
from tests.requirements import need

ANSIBLE = Path(__file__).parents[2] / "deploy/ansible"
BIN = Path(sys.executable).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy in which the tools may leave files."""
    shutil.copytree(ANSIBLE, tmp_path / "ansible")
    return tmp_path / "ansible"


def run(place: Path, *words: str) -> tuple[int, str]:
    variables = {"HOME": str(place.parent), "PATH": f"{BIN}:{os.environ['PATH']}", "NO_COLOR": "1"}
    done = subprocess.run(words, cwd=place, env=os.environ | variables, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_ansible_lint_finds_nothing(copy: Path) -> None:
    """With its strictest profile, and without network access."""
    code, said = run(copy, "ansible-lint", "--offline", "--strict", "--profile", "production", "--format", "pep8")
    assert code == 0 and "Passed" in said, said


@pytest.mark.parametrize("names", [("inventory.yml", "playbook.yml"), ("cluster-inventory.yml", "cluster.yml")])
def test_playbook_syntax_is_valid(copy: Path, names: tuple[str, str]) -> None:
    code, said = run(copy, "ansible-playbook", "-i", names[0], "--syntax-check", names[1])
    assert code == 0 and "WARNING" not in said, said


@pytest.mark.parametrize("host", few(["bridge1", "api2", "worker3"], 2))
def test_the_configurations_of_a_cluster_are_correct(copy: Path, tmp_path: Path, host: str) -> None:
    """As Ansible makes them for this machine, with the secrets beside them."""
    name = "scanbridge_config" if host == "bridge1" else "scanbridge_service_config"
    code, said = run(copy, "ansible", host, "-i", "cluster-inventory.yml", "-m", "debug", "-a", f"var={name}")
    assert code == 0, said
    text = yaml.safe_dump(json.loads(said.partition("=>")[2])[name])
    if host == "bridge1":
        found = yaml_file.load(tmp_path / "bridge.yml", Config, text)
        assert str(found.listeners[0].address) == "192.0.2.21:10025" and found.quarantine.s3 is not None
        return
    for secret in ("service-token", "metrics-token", "nats.creds", "database-password"):
        (tmp_path / secret).write_text(f"0123456789abcdef0123456789abcdef-{secret}\n")
    (tmp_path / "service.yml").write_text(text)
    config = config_files.load(tmp_path / "service.yml").config
    unit = "scanbridge-scanner" if host == "api2" else "scanbridge-worker"
    assert config.tls is not None and config.tls.cert_file == f"/run/credentials/{unit}.service/node.pem"
    assert config.database_url.startswith("postgresql://scan:0123456789abcdef0123456789abcdef-database-password@")


_NOT_HERE = {"ansible.builtin.systemd_service", "ansible.builtin.command"}  # for a machine with systemd and our package
_VAULT = {
    **{f"vault_{name}": f"0123456789abcdef0123456789abcdef-{name}" for name in ("api_token", "metrics_token")},
    "vault_nats_credentials": "credentials",
    "vault_scan_database_password": "a password",
    "vault_certificates": {"worker1": "a certificate"},
}


def apply_here(place: Path, etc: Path, **settings: object) -> tuple[int, str]:
    """The play for `worker1`, on this machine: all files it writes are below `etc`, and no unit is started."""
    role = place / "roles/scanbridge"
    for name in ("tasks/main.yml", "tasks/secrets.yml"):
        text = (ANSIBLE / "roles/scanbridge" / name).read_text().replace("/etc/", f"{etc}/")
        tasks = [task for task in yaml.safe_load(text) if not _NOT_HERE & set(task)]
        (role / name).write_text(yaml.safe_dump(tasks))
    handlers = yaml.safe_load((ANSIBLE / "roles/scanbridge/handlers/main.yml").read_text())
    nothing = [{"name": handler["name"], "ansible.builtin.debug": {"msg": "would do so"}} for handler in handlers]
    (role / "handlers/main.yml").write_text(yaml.safe_dump(nothing))
    variables = {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": sys.executable,
        "scanbridge_package": "",
        **_VAULT,
        **settings,
    }
    words = ("-i", "cluster-inventory.yml", "-l", "worker1", "-e", json.dumps(variables))
    return run(place, "ansible-playbook", *words, "cluster.yml")


@pytest.mark.long
def test_a_service_configuration_with_a_mistake_is_not_installed(copy: Path, tmp_path: Path) -> None:
    """It was: the service did not start any more, and the old file was gone."""
    need(root=True)
    etc = tmp_path / "etc"
    (etc / "scanbridge").mkdir(parents=True)
    code, said = apply_here(copy, etc)
    assert code == 0 and " failed=0 " in said, said
    written = etc / "scanbridge" / "service.yml"
    assert yaml.safe_load(written.read_text())["worker"] == {"listen": "192.0.2.41:9086"}
    assert all((etc / "scanbridge" / name).stat().st_mode & 0o777 == 0o600 for name in ("nats.creds", "node.pem"))
    unit = etc / "systemd/system/scanbridge-worker.service.d/secrets.conf"
    assert f"LoadCredential=nats.creds:{etc}/scanbridge/nats.creds\n" in unit.read_text()
    code, said = apply_here(copy, etc)
    assert code == 0 and " changed=0 " in said, said
    before = written.read_bytes()
    code, said = apply_here(copy, etc, scanbridge_service_config={"listen": "192.0.2.41:9081", "no_such_key": 1})
    assert code != 0 and "no_such_key" in said and written.read_bytes() == before, said


def use_configuration(place: Path, config: Path) -> tuple[int, str]:
    """The handlers for a changed bridge.yml, with this file; a unit is not restarted."""
    text = (ANSIBLE / "roles/scanbridge/handlers/main.yml").read_text()
    handlers = yaml.safe_load(text.replace("/etc/scanbridge/bridge.yml", str(config)))
    for handler in handlers:
        if handler.pop("ansible.builtin.systemd_service", None):
            handler["ansible.builtin.debug"] = {"msg": f"would be done: {handler['name']}"}
    notify = {"name": "Change", "ansible.builtin.debug": {"msg": "x"}, "changed_when": True}
    notify["notify"] = "Use the bridge's new configuration"
    play = {"hosts": "localhost", "connection": "local", "gather_facts": False, "handlers": handlers, "tasks": [notify]}
    play["vars"] = {"scanbridge_bridge": True, "ansible_python_interpreter": sys.executable}
    (place / "handlers.yml").write_text(yaml.safe_dump([play]))
    return run(place, "ansible-playbook", "-i", "localhost,", "handlers.yml")


@pytest.mark.long
def test_a_bridge_is_restarted_only_if_a_reload_cannot_make_the_change(copy: Path, tmp_path: Path) -> None:
    """The play failed. After a mistake that only the bridge finds, a restart would have stopped it."""
    restarts = "would be done: Restart the bridge if a reload is not enough"
    with running(tmp_path) as (bridge, _, _):
        config = tmp_path / "bridge.yml"
        before, _ = yaml_file.read(config, config.read_text())
        for change, code, restarted in (
            ({"admission": {"max_in_processing": 7}}, 0, False),
            ({"log": {"format": "json"}}, 0, True),
            ({"admin": {"address": f"127.0.0.1:{free_port()}"}}, 0, True),
            ({"relay": {**before["relay"], "ca_file": "missing.pem"}}, 2, False),
        ):
            config.write_text(yaml_file.dump({**before, **change}))
            found, said = use_configuration(copy, config)
            assert (found, restarts in said) == (code, restarted), said
        assert "missing.pem" in said and bridge.send().startswith("250 ")


def test_example_and_documented_variables_are_correct(tmp_path: Path) -> None:
    """The inventory's configuration is valid, and the page names every variable with its default."""
    inventory = yaml.safe_load((ANSIBLE / "inventory.yml").read_text())["mailservers"]["vars"]
    text = yaml.safe_dump(inventory.pop("scanbridge_config"))
    assert yaml_file.load(tmp_path / "bridge.yml", Config, text).listeners
    defaults = yaml.safe_load((ANSIBLE / "roles/scanbridge/defaults/main.yml").read_text())
    assert set(inventory) <= set(defaults)
    named = dict(re.findall(r"^\| `(scanbridge_\w+)` \| (\S*) *\|", (ANSIBLE / "README.md").read_text(), re.M))
    assert {name: yaml.safe_load(value.strip("`|") or '""') for name, value in named.items()} == defaults
