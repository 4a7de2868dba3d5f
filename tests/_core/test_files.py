"""What is read is a regular file, of a size that was foreseen; what becomes a folder's name stays in its folder."""

import os
import socket

import pytest

from bilevel._core import files


@pytest.fixture
def short_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket has 108 characters at most
    return tmp_path


def read(path):
    return files.read_regular(path, "read(it)", 100)


def test_a_file_is_read_whole_up_to_its_limit(tmp_path):
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert read(tmp_path / "a") == b"x" * 100
    (tmp_path / "a").write_bytes(b"x" * 101)
    with pytest.raises(ValueError, match=r"^read\(it\): it has more than 100 bytes"):
        read(tmp_path / "a")


@pytest.mark.skipif(os.name == "nt", reason="pipes and devices are files on Unix only")
def test_a_pipe_a_socket_and_a_device_are_refused_and_nothing_waits(short_path):
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        for path in ("pipe", "socket", os.devnull, "/dev/zero"):
            with pytest.raises(OSError, match=r"^read\(it\): it is a pipe, a device or a socket"):
                read(path)


def test_a_link_is_followed_to_a_regular_file_and_nowhere_else(short_path):
    (short_path / "file").write_bytes(b"content")
    (short_path / "link").symlink_to("file")
    assert read("link") == b"content"
    (short_path / "directory").symlink_to(".")
    with pytest.raises(IsADirectoryError, match=r"^read\(it\): it is a directory"):
        read("directory")
    (short_path / "device").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="a device"):
        read("device")
    (short_path / "circle").symlink_to("circle")
    with pytest.raises(OSError, match=r"^read\(it\): it cannot be read \(.*links"):
        read("circle")
    (short_path / "broken").symlink_to("missing")
    with pytest.raises(FileNotFoundError, match=r"^read\(it\): there is no such file"):
        read("broken")


@pytest.mark.skipif(os.name == "nt", reason="pipes are files on Unix only")
def test_a_file_that_is_exchanged_for_a_pipe_is_refused_too(short_path, monkeypatch):
    (short_path / "file").write_bytes(b"content")
    os.mkfifo("pipe")
    opened = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: opened("pipe", flags))
    with pytest.raises(OSError, match="it is a pipe"):
        read("file")


@pytest.mark.parametrize("path", [None, 0, 1.5, b"bytes", ["list"]], ids=repr)
def test_what_is_no_path(path):
    with pytest.raises(TypeError, match=r"^read\(it\): it needs the path of a file, not "):
        read(path)


def test_paths_that_no_file_can_have(tmp_path):
    with pytest.raises(ValueError, match="no zero characters"):
        read("a\0b")
    with pytest.raises(OSError, match=r"^read\(it\): it cannot be read \(.*long"):
        read("a" * 5000)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match=r"^read\(it\): it cannot be read"):
        read(tmp_path / "file" / "inside")


def test_a_file_without_permission(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)  # as anyone but the superuser sees it
    with pytest.raises(PermissionError, match=r"^read\(it\): there is no permission to read it"):
        read(tmp_path / "a")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../up", "a/b", "/etc", "a\\b", "a\0b", "a\nb", "\x1b[2J", None, 3], ids=repr
)
def test_names_that_lead_out_of_their_folder(name):
    with pytest.raises(ValueError, match=r"method .*: it becomes the name of a folder"):
        files.check_component(name, "method")


@pytest.mark.parametrize("name", ["min-max", "MORBiT(0.1)", "..a", "süd ☃", "a b"])
def test_names_that_stay_in_their_folder(name):
    files.check_component(name, "method")


def test_the_target_of_a_link_is_written_and_what_is_protected_is_not(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "a")
    assert files.target_file(tmp_path / "link", "save(it)") == (tmp_path / "folder" / "a").resolve()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PermissionError, match=r"^save\(it\): what is there is write-protected or not a regular file"):
        files.target_file(tmp_path / "pipe", "save(it)")
    with pytest.raises(IsADirectoryError, match=r"^save\(it\): it is a directory"):
        files.target_file(tmp_path, "save(it)")
    with pytest.raises(FileNotFoundError, match=r"^save\(it\): there is no directory '.*none'"):
        files.target_file(tmp_path / "none" / "a", "save(it)")
