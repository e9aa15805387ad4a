"""YARA: real rules, wrong rules, rules that take too long."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from bridge.errors import ConfigError
from bridge.runtime import yaml_file
from bridge.service.analysis.yara_rules import Matcher, compiled_setup
from bridge.service.engine_settings import Yara
from bridge.service.settings import ServiceConfig
from tests.requirements import unavailable
from tests.service.service_kit import CONFIG, DEADLINE_S, attached, mail, service, wait_for, zipped
from tests.service.test_service_check import check

try:
    import yara
except ImportError:
    yara = None

RULES = """
rule Lab_Word : malware { strings: $a = "xyzzy" condition: $a }
rule Lab_Score { meta: score = 3 strings: $a = "plugh" condition: $a }
rule Lab_Subject { meta: score = 1 strings: $a = "Subject: strange" condition: $a at 0 or $a }
rule Lab_Name { meta: score = 0 condition: extension == "scr" and filename contains "bill" }
"""
SLOW = """rule Slow {
  condition: for all i in (1..filesize): (for all j in (1..filesize): (uint8(i - 1) + uint8(j - 1) >= 0))
}"""


@pytest.fixture(autouse=True)
def needs_yara():
    if yara is None:
        unavailable("yara-python is not installed (pip install 'scanbridge[yara]')")


def config(**settings: object) -> str:
    more = "".join(f", {key}: {value}" for key, value in settings.items())
    return CONFIG + f"analyzers: {{processes: 1, yara: {{rules: ['*.yar']{more}}}}}\n"


def test_rules_see_the_mail_its_parts_and_archives(tmp_path):
    """With the score of the rule; a rule with the tag `malware` is malware. A reload compiles the rules again."""
    (tmp_path / "lab.yar").write_text(RULES)
    with service(tmp_path, config()) as running:
        assert running.submit(mail()).json["tags"] == []
        assert running.submit(b"").json["tags"] != ["failed:yara"]
        found = running.submit(attached(zipped(("a.txt", b"xyzzy")))).json
        assert (found["decision"], found["tags"]) == ("quarantine", ["malware:yara.lab_word", "yara:Lab_Word"])
        some = running.submit(attached(b"plugh")).json
        assert (some["decision"], some["tags"]) == ("deliver", ["yara:Lab_Score"])
        assert running.submit(mail(Subject="strange")).json["tags"] == ["yara:Lab_Subject"]
        assert "yara:Lab_Name" in running.submit(attached(b"x", "BILL bill.SCR")).json["tags"]
        (tmp_path / "more.yar").write_text('rule More { strings: $a = "quux" condition: $a }')
        (tmp_path / "lab.yar").write_text("rule Broken {")
        with pytest.raises(ConfigError, match=r"lab\.yar:1: "):
            running.call(running.server.reload(_loaded(tmp_path)))
        assert running.submit(attached(b"plugh quux")).json["tags"] == ["yara:Lab_Score"]
        (tmp_path / "lab.yar").unlink()
        running.call(running.server.reload(_loaded(tmp_path)))
        more = running.submit(attached(b"plugh quux")).json
        assert (more["decision"], more["tags"]) == ("quarantine", ["yara:More"])


def _loaded(directory: Path) -> ServiceConfig:
    return yaml_file.load(directory / "service.yml", ServiceConfig, config())


def test_the_timeout_reaches_the_process_that_matches(tmp_path):
    """And the time of the whole inspection includes it: the tests with slow rules allow more than the default."""
    (tmp_path / "lab.yar").write_text(RULES)
    settings = Yara(rules=[str(tmp_path / "lab.yar")], timeout="7s")
    assert Matcher(compiled_setup(settings))._timeout_s == 7
    with service(
        tmp_path, config(timeout="7s").replace("processes: 1", "processes: 1, mime: {timeout: 3s}")
    ) as running:
        assert running.server._site._backend._pipeline._inspect_s == 11


@pytest.mark.parametrize(("required", "expected"), [("true", "undecided"), ("false", "deliver")])
def test_rules_that_take_too_long(tmp_path, required, expected):
    """Only YARA is without an answer, after its own timeout; what other analyzers find counts."""
    (tmp_path / "slow.yar").write_text(SLOW)
    with service(tmp_path, config(timeout="1s", required=required)) as running:
        start = time.monotonic()
        answer = running.submit(attached(os.urandom(200_000))).json
        assert time.monotonic() - start < 50
        assert answer["decision"] == expected
        assert set(answer["tags"]) - {"incomplete"} == {"limit:yara"}


def test_a_frozen_or_killed_process(tmp_path):
    """The mail is undecided within the time of both analyzers, and the next one has a new process."""
    (tmp_path / "slow.yar").write_text(SLOW)
    text = config(timeout="2s").replace("processes: 1", "processes: 1, mime: {timeout: 1s}")
    with service(tmp_path, text) as running:
        for how in (signal.SIGSTOP, signal.SIGKILL):
            answers: list[dict] = []
            start = time.monotonic()
            asking = threading.Thread(target=lambda a=answers: a.append(running.submit(attached(b"x" * 100_000)).json))
            asking.start()
            wait_for(lambda: _busy() is not None)
            with suppress(ProcessLookupError):
                os.kill(_busy() or 0, how)
            asking.join(DEADLINE_S)
            assert time.monotonic() - start < 50
            assert answers[0]["decision"] == "undecided"
            assert {"incomplete"} < set(answers[0]["tags"]) and "yara" in str(answers[0]["tags"])


def _busy() -> int | None:
    """The inspecting child of this process that uses the CPU."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError):
            fields = status.read_text().rpartition(")")[2].split()
            command = (status.parent / "cmdline").read_bytes()
            if int(fields[1]) == os.getpid() and fields[0] == "R" and b"inspector_process" in command:
                return int(status.parent.name)
    return None


def test_mistakes_name_file_and_line(tmp_path):
    """All files at once, also in `service check`; a missing file and a missing package are named as well."""
    (tmp_path / "a.yar").write_text("rule A {\n condition: $x\n}\n")
    (tmp_path / "b.yar").write_text("\n\nrule B { condition: nonsense }\n")
    code, shown = check(tmp_path, config())
    assert code == 1
    assert "a.yar:" in shown and "b.yar:3: " in shown
    code, shown = check(tmp_path, config().replace("*.yar", "absent.yar"))
    assert code == 1
    assert "absent.yar cannot be read: No such file" in shown
    code, shown = check(tmp_path, config().replace("rules", "rule"))
    assert code == 78
    assert "did you mean rules?" in shown


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "yara", None)
    with pytest.raises(ConfigError, match=r"pip install 'scanbridge\[yara\]'"):
        compiled_setup(Yara(rules=["a.yar"]))


def test_a_rule_behind_the_hundredth_was_lost(tmp_path):
    """`decisions` may name any rule: all of them are tags, or the mail counts as not examined completely."""
    names = [f"Lab_{number:04}" for number in range(1001)]
    (tmp_path / "lab.yar").write_text(
        "".join(f'rule {name} {{ strings: $a = "xyzzy" condition: $a }}\n' for name in names)
    )
    (tmp_path / "one.yar").write_text('rule Last { strings: $a = "plugh" condition: $a }')
    matcher = Matcher(compiled_setup(Yara(rules=[str(tmp_path / "*.yar")])))
    matcher.see(b"xyzzy", ())
    assert not matcher.answer(saw_all=True)["is_complete"]
    (tmp_path / "lab.yar").write_text(
        "".join(f'rule {name} {{ strings: $a = "xyzzy" condition: $a }}\n' for name in names[:999])
    )
    matcher = Matcher(compiled_setup(Yara(rules=[str(tmp_path / "*.yar")])))
    matcher.see(b"xyzzy plugh", ())
    found = matcher.answer(saw_all=True)
    assert found["is_complete"] and set(found["tags"]) == {f"yara:{name}" for name in (*names[:999], "Last")}
