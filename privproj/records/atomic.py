"""Files read up to a size, and replaced as a whole: a kill at any moment leaves the old one or the new one."""

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import file_digest
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from privproj.errors import InvalidParameter

LARGEST_FILE = 1 << 24
"""Bytes of a file that is read at most, but for ledgers, which grow with a run. Contract."""


def read_bounded(path: str | Path, name: str = "FILE", most: int = LARGEST_FILE) -> bytes:
    """The bytes of a file, or of a pipe, that has at most ``most`` bytes.

    Raises :class:`InvalidParameter` under this name for one that has more, cannot be read, or is a folder or a device.
    """
    with _opened(path, name) as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(most + 1) if size <= most else b""
    if max(len(content), size) > most:
        raise InvalidParameter(name, path, f"a file of at most {most} bytes")
    return content


def digest_of(path: str | Path, name: str = "FILE") -> str:
    """The SHA-256 of a file of any size, in hexadecimal digits; refused like :func:`read_bounded`."""
    with _opened(path, name) as file:
        return file_digest(file, "sha256").hexdigest()


@contextmanager
def _opened(path: str | Path, name: str) -> Iterator[BufferedReader]:
    """A file or a pipe to read from; anything else, or one that cannot be read, is refused under this name."""
    try:
        # Opened as usual, a pipe that nobody writes would be waited for.
        with open(path, "rb", opener=lambda place, flags: os.open(place, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
                raise InvalidParameter(name, path, "a file, not a folder or a device")
            os.set_blocking(file.fileno(), True)
            yield file
    except OSError as error:
        raise InvalidParameter(name, path, "a readable file", str(error.strerror)) from None
    except UnicodeError:
        raise InvalidParameter(name, path, "a readable file", "its name cannot be read") from None


def open_alone(path: str | Path, name: str) -> int:
    """The descriptor of a file opened for reading and appending, under a lock that no other process holds.

    Raises :class:`InvalidParameter` under this name where it cannot be opened, or where another process has it.
    """
    import fcntl

    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError as error:
        raise InvalidParameter(name, path, "a file that can be written", str(error.strerror)) from None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        expected = f"a {name} that no other process is writing"
        raise InvalidParameter(name, path, expected, f"one {name} belongs to one run at a time") from None
    return file


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Let an error of the file system, which often names no file, name this one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_atomically(path: str | Path, fill: Callable[[BinaryIO], object], mode: int | None = None) -> None:
    """Let ``fill`` write a file beside ``path``, flush it to the disk, and put it in the place of ``path``.

    The file gets this ``mode``; with None that of the file that is replaced, or the usual one. A link stays, and what
    it points to is replaced; a pipe or a device cannot be, so it is written to. Raises OSError that names ``path``.
    """
    with naming(path):
        if os.path.exists(path) and not os.path.isfile(path):
            with open(path, "wb") as file:
                fill(file)
            return
        target = Path(os.path.realpath(path))
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        try:
            with os.fdopen(handle, "wb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(beside, _usual_mode(target) if mode is None else mode)
            os.replace(beside, target)
        except BaseException:
            Path(beside).unlink(missing_ok=True)
            raise


def _usual_mode(target: Path) -> int:
    """The mode of a file, or that of a new one."""
    if target.exists():
        return target.stat().st_mode
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
