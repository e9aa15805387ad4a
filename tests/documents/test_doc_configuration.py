"""The configurations in the documents are accepted by the programs they are for."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from bridge.config.model import Config
from bridge.runtime import yaml_file
from bridge.service.settings import ServiceConfig
from tests.documents.blocks import Block, blocks

# The rest of the configuration, for excerpts.
BRIDGE: dict[str, Any] = {
    "scanner": {"urls": ["http://127.0.0.1:9081"], "token_file": "token"},
    "listeners": [{"name": "mx", "address": "127.0.0.1:10025"}],
    "relay": {"next_hop": "smtp://127.0.0.1:10026"},
}
# Files of other programs: Kustomize, Prometheus.
OTHERS = {"configMapGenerator", "scrape_configs"}
EXCERPTS = [block for block in blocks() if block.language == "yaml"]


@pytest.mark.parametrize("block", EXCERPTS, ids=lambda block: f"{block.page}:{block.line}")
def test_configuration_is_valid(block: Block, tmp_path):
    """As a whole, or as an excerpt."""
    text = block.text.replace("STATE", "/var/lib/scanbridge").replace("token: ...", "token: " + 64 * "0")
    shown = yaml.safe_load(text)
    if shown.keys() & OTHERS:
        return
    if shown.keys() <= Config.model_fields.keys():
        yaml_file.load(tmp_path / "bridge.yml", Config, yaml_file.dump({**BRIDGE, **shown}))
    else:
        for number, name in enumerate(re.findall(r"(?:token|password)_file: ([\w-]+)", text)):
            (tmp_path / name).write_text(64 * str(number))
        yaml_file.load(tmp_path / "service.yml", ServiceConfig, text)
