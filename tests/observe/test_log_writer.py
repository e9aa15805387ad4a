"""The log of a running daemon: one line per mail, and no delay for mail if it cannot be written."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.testing import SmtpClient, free_port
from tests.daemon.process_kit import (
    MAIL,
    ROOT,
    environment,
    get,
    json_lines,
    running,
    scanbridge,
    start,
    until,
    write_config,
)
from tests.daemon.process_kit import parts as scripted
from tests.service.service_kit import Service


def test_json_lines_parse_and_escape(tmp_path: Path) -> None:
    """Every line is a JSON object; control characters from clients are escaped."""
    with running(tmp_path, log={"format": "json"}) as (bridge, _, _):
        with SmtpClient(bridge.port) as client:
            client.open(b"EHLO \x1b[31m\xff\xc3\xa9")
            assert client.mail().startswith(b"250 ")
        bridge.signal()
        assert bridge.wait() == 0
        lines = json_lines(bridge.log)
        assert all("time" in line for line in lines)
        (mail,) = (line for line in lines if "id" in line)
        assert mail["action"] == "relay" and mail["size"] > 0
        assert "\x1b" not in bridge.log and "\\u001b[31m" in bridge.log


def test_key_value_lines_escape_what_clients_send(tmp_path: Path) -> None:
    """No ESC reaches a terminal, and no line break forges a second line."""
    with running(tmp_path) as (bridge, _, next_hop):
        next_hop.replies[b"."] = b"550 5.7.1 \x1b[2J no\x07"
        with SmtpClient(bridge.port) as client:
            client.open(b"EHLO a\x1b]0;title\x07b id=FORGED")
            client.mail()
        (line,) = bridge.mail_lines(1)
        assert "\x1b" not in bridge.log and "\x07" not in bridge.log
        assert 'helo="a\\u001b]0;title\\u0007b id=FORGED"' in line
        assert not [logged for logged in bridge.log.splitlines() if logged.startswith("id=FORGED")]


def fill(pipe: int) -> None:
    """Until not one byte more fits, however large it is."""
    os.set_blocking(pipe, False)
    for size in (4096, 1):
        with pytest.raises(BlockingIOError):
            while True:
                os.write(pipe, b"x" * size)
    os.set_blocking(pipe, True)


@pytest.mark.parametrize("stream", ["full", "closed", "broken pipe", "stuck pipe"])
def test_a_log_that_cannot_be_written_does_not_stop_mail(tmp_path: Path, stream: str) -> None:
    """A full disk, a closed stream, a reader that exited or hangs: log lines are lost, mail is not."""
    reading, writing = os.pipe()
    try:
        with Path("/dev/full").open("wb") as full:
            if stream == "full":
                streams = {"stderr": full, "stdout": full}
            elif stream == "closed":
                streams = {"preexec_fn": lambda: (os.close(1), os.close(2))}
            else:
                streams = {"stderr": writing, "stdout": writing}
                if stream == "broken pipe":
                    os.close(reading)
                    reading = -1
                else:
                    fill(writing)
            with running(tmp_path, streams=streams) as (bridge, _, next_hop):
                with bridge.client() as client:
                    for _ in range(3):
                        assert client.mail().startswith(b"250 ")
                assert len(next_hop.mails) == 3
                if stream == "closed":  # otherwise the next socket would get number 2, and our log lines
                    assert os.readlink(f"/proc/{bridge.process.pid}/fd/2") == "/dev/null"
                if stream in ("full", "broken pipe"):
                    lost = "scanbridge_log_lines_lost_total "
                    until(
                        lambda: any(
                            line.startswith(lost) and float(line.removeprefix(lost)) >= 3
                            for line in get(bridge.admin, "/metrics")[1].splitlines()
                        ),
                        "the lost lines to be counted",
                    )
                bridge.signal()
                assert bridge.wait() == 0
    finally:
        for fd in (reading, writing):
            if fd >= 0:
                os.close(fd)


def test_a_long_line_to_a_full_pipe_stopped_the_supervisor() -> None:
    """There was room for a part of it, so it was written, and the writer waited for a reader."""
    program = (
        "import logging; from bridge.observe import log_writer\n"
        "log_writer.set_up_without_thread('text', 'info')\n"
        "for _ in range(20):\n"
        "    try:\n"
        "        raise ValueError(chr(0x20ac) * 4000)\n"
        "    except ValueError:\n"
        "        logging.exception('reload: unexpected error')\n"
    )
    reading, writing = os.pipe()  # nobody reads it
    try:
        process = subprocess.Popen([sys.executable, "-c", program], stderr=writing, cwd=ROOT)
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(reading)
        os.close(writing)


def test_a_log_that_nobody_reads_stopped_the_scanning_service(tmp_path: Path) -> None:
    """It waited for the reader, and all mail waited for its decisions."""
    (tmp_path / "service.yml").write_text("listen: 127.0.0.1:0\n")
    reading, writing = os.pipe()
    try:
        fill(writing)
        command = [sys.executable, "-m", "bridge", "service", "-c", "service.yml"]
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)), stdout=subprocess.PIPE, stderr=writing
        )
        try:
            assert process.stdout is not None
            assert select.select([process.stdout], [], [], 60)[0], "the service did not start"
            line = process.stdout.readline().decode()
            assert "listening on" in line
            service = Service()
            service.port = int(line.rpartition(":")[2])
            assert service.status().status == 401  # an answer; the refusal is logged
        finally:
            process.kill()
            process.communicate()
    finally:
        os.close(reading)
        os.close(writing)


def test_a_welcome_text_that_cannot_be_written_does_not_stop_the_daemon(tmp_path: Path) -> None:
    """The embedded service prints it to standard output, which may be a full disk."""
    with scripted() as (_, scanner, next_hop), Path("/dev/full").open("wb") as full:
        config, port, admin = write_config(tmp_path, scanner.url, next_hop.url, embedded_service=False)
        text = config.read_text().replace("embedded_service: false", "embedded_service: true")
        config.write_text(text.replace(scanner.url, f"http://127.0.0.1:{free_port()}"))
        bridge = start(config, port, admin, stdout=full)
        try:
            assert bridge.send(MAIL).startswith("250 ")
            bridge.signal()
            assert bridge.wait() == 0
            assert "Traceback" not in bridge.log
        finally:
            bridge.end()


def test_log_level_leaves_out_other_lines_but_not_those_of_mails(tmp_path: Path) -> None:
    """`log.level` applies to all lines except those of mails."""
    with running(tmp_path, log={"level": "warning"}) as (bridge, _, _):
        assert bridge.send().startswith("250 ")
        assert bridge.mail_lines(1)
        assert "level=info" not in bridge.log


def test_a_command_with_a_broken_pipe_prints_no_traceback(tmp_path: Path) -> None:
    """`scanbridge config show | head -1` is ordinary use."""
    config, _, _ = write_config(tmp_path, "http://127.0.0.1:9", "127.0.0.1:9")
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = scanbridge("config", "show", "-c", config, stdout=writing)
    finally:
        os.close(writing)
    assert "Traceback" not in done.stderr
