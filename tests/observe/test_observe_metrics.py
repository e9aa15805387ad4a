"""A scrape of several workers is complete, well formed and correct."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from bridge.daemon import certificate_expiry
from bridge.daemon.loop_lag import LoopLag
from bridge.observe.metric_types import Gauge
from bridge.observe.metrics import Metrics
from bridge.quarantine.usage import measure
from bridge.testing import running_bridge
from tests.daemon.process_kit import get, until
from tests.observe.observe_kit import ROOT, Scene, certificate, promtool


def scrape(port: int) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    _, text = get(port, "/metrics")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: dict[tuple[str, frozenset[tuple[str, str]]], float], name: str, /, **labels: str) -> float:
    """The value of the only sample with this name and these labels (it may have more)."""
    (sample,) = [number for (n, have), number in found.items() if n == name and labels.items() <= dict(have).items()]
    return sample


def total(found: dict[tuple[str, frozenset[tuple[str, str]]], float], wanted: str) -> float:
    return sum(number for (name, _), number in found.items() if name == wanted)


def test_promtool_finds_nothing_wrong(scene: Scene) -> None:
    """Prometheus' linter accepts names, units and help texts."""
    promtool("check", "metrics", stdin=get(scene.bridge.admin, "/metrics")[1])


def test_every_declared_metric_is_in_one_scrape_of_two_workers(scene: Scene) -> None:
    """Every declared metric appears, except those whose help text says when they are absent."""
    _, text = get(scene.bridge.admin, "/metrics")
    shown = {family.name for family in text_string_to_metric_families(text) if family.samples}
    families = Metrics(["mx"]).registry.collect()
    declared = {family.name for family in families if "absent" not in family.documentation}
    declared = declared - {"scanbridge_build"} | {"scanbridge_build_info"}  # the parser treats it as a gauge
    assert declared <= shown, declared - shown


def test_a_scrape_adds_up_two_workers(scene: Scene) -> None:
    """Counters are added up; so are CPU time, memory and descriptors of both processes."""
    before = scrape(scene.bridge.admin)
    for _ in range(8):
        scene.send()
    found = scrape(scene.bridge.admin)
    for name in ("scanbridge_mails_total", "scanbridge_scan_seconds_count", "scanbridge_replies_total"):
        assert total(found, name) - total(before, name) == 8
    assert value(found, "scanbridge_workers") == 2
    assert value(found, "process_resident_memory_bytes") > 2 * 20e6
    assert value(found, "process_max_fds") == 2 * os_limit(scene.bridge.process.pid)
    assert 0 < value(found, "process_open_fds") < 500
    assert 0 < value(found, "process_cpu_seconds_total") < 100


def os_limit(pid: int) -> int:
    limits = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = [line for line in limits if line.startswith("Max open files")]
    return int(line.split()[3])


def test_metrics_show_how_each_next_hop_answered(scene: Scene) -> None:
    hop, name = scene.next_hop.url, "scanbridge_next_hop_mails_total"
    before = scrape(scene.bridge.admin)
    scene.send()
    scene.send()
    found = scrape(scene.bridge.admin)
    assert value(found, name, next_hop=hop, result="taken") - value(before, name, next_hop=hop, result="taken") == 2
    assert value(found, "scanbridge_next_hop_mails_total", next_hop=hop, result="unreachable") == 0
    assert value(found, "scanbridge_next_hop_up", next_hop=hop) == 1
    assert value(found, "scanbridge_next_hop_connections", next_hop=hop, state="busy") == 0


def test_metrics_show_when_a_listeners_certificate_expires(scene: Scene) -> None:
    found = scrape(scene.bridge.admin)
    shown = value(found, "scanbridge_tls_certificate_expiry_time_seconds", role="listener", name="mx")
    assert shown == scene.ends["mx"]


@pytest.mark.parametrize(
    ("replies", "result", "up"),
    [
        ({b".": b"451 4.0.0 later"}, "deferred", 1),
        ({b"RCPT": b"550 5.1.1 nobody"}, "refused", 1),
        ({b"CONNECT": b"554 5.0.0 closed"}, "unreachable", 0),
        ({b".": b""}, "lost", 1),
    ],
)
def test_a_failing_next_hop_is_counted_by_how_it_fails(tmp_path, replies, result, up) -> None:
    """Only a next hop that accepts no connection counts as down."""
    with running_bridge(tmp_path) as bridge:
        bridge.next_hop.replies = replies
        with bridge.client() as client:
            client.open()
            client.mail()
        found = scrape(bridge.admin_port)
        assert value(found, "scanbridge_next_hop_mails_total", result=result) == 1
        assert total(found, "scanbridge_next_hop_mails_total") == 1
        assert value(found, "scanbridge_next_hop_up") == up


def test_metrics_show_current_saturation_and_throttling(tmp_path) -> None:
    """A scanner with status RED is a separate cause."""
    with running_bridge(tmp_path, {"admission": {"max_in_processing": 4, "throttle_threshold": 1}}) as bridge:
        for _ in range(3):
            bridge.daemon.admission.enter()
        found = scrape(bridge.admin_port)
        assert value(found, "scanbridge_throttle_delay_seconds") == 5.0
        assert value(found, "scanbridge_saturated", cause="limit") == 0
        bridge.daemon.admission.enter()
        bridge.daemon.scanner.hosts[0].saturated_until = float("inf")
        found = scrape(bridge.admin_port)
        assert value(found, "scanbridge_saturated", cause="limit") == 1
        assert value(found, "scanbridge_saturated", cause="scanner") == 1
        for _ in range(4):
            bridge.daemon.admission.leave()


def test_quarantine_usage_counts_complete_mails_and_their_age(tmp_path) -> None:
    """A mail that is still being written is not counted."""
    for name, size in (("A1.eml", 100), ("A1.json", 10), ("B2.eml", 50), ("B2.json", 5), (".tmp-C3.eml", 999)):
        (tmp_path / name).write_bytes(b"x" * size)
    old = time.time() - 1000
    os.utime(tmp_path / "A1.json", (old, old))
    usage = measure(tmp_path)
    assert (usage.mails, usage.size_bytes) == (2, 165)
    assert usage.oldest_at == pytest.approx(old, abs=1)
    assert 0 < usage.disk_free_bytes < usage.disk_size_bytes


def test_a_scrape_does_not_read_the_quarantine_directory(tmp_path) -> None:
    """A thread counts the mails once a minute; a scrape shows its last result."""
    with running_bridge(tmp_path) as bridge:
        until(lambda: scrape_has(bridge.admin_port, "scanbridge_quarantine_mails"), "the first count")
        (tmp_path / "state" / "quarantine" / "X.json").write_text("{}")
        assert value(scrape(bridge.admin_port), "scanbridge_quarantine_mails") == 0


def scrape_has(port: int, name: str) -> bool:
    return any(have == name for have, _ in scrape(port))


def test_certificates_are_read_as_openssl_reads_them(tmp_path) -> None:
    """Of a chain, the earliest expiry counts; data that is no certificate has none."""
    from tests.observe.observe_kit import _end

    certificate(tmp_path)
    assert certificate_expiry.earliest_expiry(tmp_path / "cert.pem") == _end(tmp_path / "cert.pem")
    assert certificate_expiry.earliest_expiry(tmp_path / "key.pem") is None
    assert certificate_expiry.earliest_expiry(tmp_path / "missing.pem") is None
    for rubbish in (b"", b"\x30", b"\x30\x84\xff\xff\xff\xff", b"\x30\x03\x30\x01\x02", os.urandom(200)):
        assert certificate_expiry.expiry_of(rubbish) is None


@pytest.mark.parametrize(
    ("kind", "text", "end"),
    [(0x17, "491231235959Z", 2524607999), (0x17, "700101000000Z", 0), (0x18, "20500101000000Z", 2524608000)],
)
def test_both_time_formats_in_a_certificate_are_read(kind, text, end) -> None:
    assert certificate_expiry._time(kind, text) == end


async def test_a_blocked_event_loop_is_measured() -> None:
    lag = LoopLag()
    task = asyncio.create_task(lag.watch())
    await asyncio.sleep(0.05)
    time.sleep(0.4)
    await asyncio.sleep(0.01)
    task.cancel()
    assert 0.1 < lag.worst_s < 30


@pytest.mark.parametrize(("combine", "expected"), [(max, 3), (sum, 5), (min, 2)])
def test_gauges_of_several_workers_are_combined(combine, expected) -> None:
    gauge = Gauge("x", "x.", ("host",), combine=combine)
    gauge.show([[["a", 2]], [["a", 3]], []])
    assert list(gauge.read()) == [(("a",), expected)]


def test_cpu_time_is_counted_once() -> None:
    """Repeated snapshots do not add it again, and the time of a worker that exited is kept."""
    metrics, exited = Metrics(["a"]), {"cpu": [[100.0]]}
    first = metrics.merged([exited]).snapshot()["cpu"][0][0]
    second = metrics.merged([exited]).snapshot()["cpu"][0][0]
    assert 100 < first <= second < first + 1


def test_a_process_without_a_free_descriptor_still_reports_its_other_gauges() -> None:
    """A gauge that cannot be read is left out; an exception would lose all metrics of a worker."""
    code = """
import os, resource
from bridge.daemon import gauges
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
try:
    while True:
        os.dup(0)
except OSError:
    print(list(gauges.open_descriptors()), list(gauges.resident_bytes()))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[((), 40)] []"
