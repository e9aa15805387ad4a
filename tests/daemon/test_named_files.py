"""Files and directories that the configuration names, and where they are looked up."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.daemon import directories, named_files
from bridge.errors import ConfigError


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("STATE_DIRECTORY", "XDG_STATE_HOME", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def test_the_most_specific_setting_is_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The configuration, then systemd, then XDG, then the home directory; always absolute."""
    assert directories.state_directory(None) == tmp_path / "home/.local/state/scanbridge"
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert directories.state_directory(None) == tmp_path / "home/.local/state/scanbridge"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "xdg"))
    assert directories.state_directory(None) == tmp_path / "xdg/scanbridge"
    monkeypatch.setenv("STATE_DIRECTORY", f"{tmp_path}/one:{tmp_path}/two")
    assert directories.state_directory(None) == tmp_path / "one"
    assert directories.state_directory("~/state") == tmp_path / "home/state"
    monkeypatch.chdir(tmp_path)
    assert directories.state_directory("here") == tmp_path / "here"


def test_a_file_is_a_credential_or_next_to_the_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd's credential wins; a file that is not a credential (a CA file, for instance) is still found."""
    assert named_files.locate("/etc/token", tmp_path) == Path("/etc/token")
    assert named_files.locate("token", tmp_path) == tmp_path / "token"
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert (
        named_files.locate("token", tmp_path) == credentials / "token"
    )  # it exists nowhere: this is where it should be
    (tmp_path / "token").write_text("")
    assert named_files.locate("token", tmp_path) == tmp_path / "token"
    (credentials / "token").write_text("")
    assert named_files.locate("token", tmp_path) == credentials / "token"


def test_a_secret_is_created_once_and_readable_only_by_its_owner(tmp_path: Path) -> None:
    """32 random bytes as 64 hex digits; a second start keeps it."""
    path = tmp_path / "token"
    named_files.make_secret(path, "key")
    secret = named_files.read_secret(path, "key")
    assert len(secret) == 64 and int(secret, 16) and stat.S_IMODE(path.stat().st_mode) == 0o600
    named_files.make_secret(path, "key")
    assert named_files.read_secret(path, "key") == secret


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "Is a directory; it must contain the secret on one line"),
        (b"", "is empty; write the secret into it"),
        (b"short\n", "must contain one line of 8 to 4096"),
        (b"aaaaaaaaaaaa\nbbbbbbbbbbbb\n", "must contain one line"),
        (b"aaaaaaaaaa aaaaa\n", "without spaces"),
        (b"aaaaaaaaaa\xff\n", "is not plain text"),
    ],
)
def test_an_unusable_secret_is_reported_without_its_content(tmp_path: Path, content: bytes | None, words: str) -> None:
    """The error names the key, the file and the next step."""
    path = tmp_path / "token"
    path.mkdir() if content is None else path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as raised:
        named_files.read_secret(path, "scanner.token_file")
    assert str(raised.value).startswith(f"scanner.token_file: {path} ") and "aaa" not in str(raised.value)


def test_a_secret_that_cannot_be_created_is_a_configuration_error(tmp_path: Path) -> None:
    """The error names the key and the next step."""
    with pytest.raises(ConfigError, match=r"scanner\.token_file: .* cannot be created: .*choose a place"):
        named_files.make_secret(tmp_path / "none" / "token", "scanner.token_file")


def test_directories_are_created_for_their_owner_alone(tmp_path: Path) -> None:
    """They hold mail."""
    made = directories.make_directory(tmp_path / "a" / "b", "key")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_a_full_disk_leaves_no_empty_secret(tmp_path: Path) -> None:
    """An empty release-key stayed behind, and the daemon did not start when there was space again."""
    program = (
        "import resource, sys; from pathlib import Path; from bridge.daemon.named_files import make_secret\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)); make_secret(Path(sys.argv[1]), 'key')"
    )
    path = tmp_path / "release-key"
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, timeout=60)
    assert "ConfigError: key: " in done.stderr and "cannot be created: File too large; free some space" in done.stderr
    assert not path.exists()
