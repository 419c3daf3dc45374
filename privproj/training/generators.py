"""Provide random streams for batches, projections, noise and forward passes.

torch seeds its CPU generator with only 32 bits. Here the whole state of the CPU generator comes from entropy of the
operating system. On a GPU 124 bits of the seed and the counter come from this entropy. The generators are not
cryptographic, and floating-point Gaussian samples are only approximately Gaussian. The batches of balls-in-bins come
from SHAKE-256, because a resumed run must draw the same batches again on any machine.
"""

import os
import random
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256, shake_256
from typing import Any, NoReturn

import numpy as np
import torch

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.parameters import integer
from privproj.training.processes import Processes

ENTROPY_BITS = 256  # soundness: bits from the operating system for the streams of one run, too many to try all

# soundness: number of 32-bit words in which numpy mixes these bits; numpy's default is half as many
POOL_SIZE = ENTROPY_BITS // 32

STATE_SIZE = 624  # 32-bit words in the state of torch's Mersenne twister (Matsumoto and Nishimura 1998)

FIRST_WORD = 24  # bytes before the first word in the state as torch serializes it: three fields of 8 bytes

# bytes in the state of a generator for each type of device; on the CPU every 32-bit word takes 8 bytes
STATE_BYTES = {"cpu": 5056, "cuda": 16}

CPU = torch.device("cpu")

# bound on the first offset of a GPU's counter, a signed 64-bit number in torch; larger numbers are left for counting
LARGEST_OFFSET = 2**62


class Stream:
    """A random stream that cannot be copied, pickled or used in a forked process.

    The stream has one generator for each device, made at the first use of that device.
    """

    def __init__(self, seed: np.random.SeedSequence) -> None:
        self.seed, self.process = seed, os.getpid()
        self.generators: dict[torch.device, torch.Generator] = {}

    def fresh_seed(self) -> np.random.SeedSequence:
        """Return a new seed, different from all seeds that the stream has returned.

        Raises :class:`InvalidParameterError` in a forked process.
        """
        self.check_process()
        return self.seed.spawn(1)[0]

    def check_process(self) -> None:
        """Raise :class:`InvalidParameterError` in a process that did not seed the stream."""
        if os.getpid() != self.process:
            expected = f"the process that seeded the random numbers ({self.process})"
            remedy = "call make_private in each process, because a forked process repeats the noise"
            raise InvalidParameterError("process", os.getpid(), expected, remedy)

    def on(self, device: torch.device) -> torch.Generator:
        """Return the stream's random generator for a device.

        Raises :class:`InvalidParameterError` in a forked process, and :class:`UnsupportedError` while a CUDA graph is
        captured.
        """
        self.check_process()
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            problem = "a step cannot be part of a CUDA graph, because the ledger would not count its replays"
            raise UnsupportedError(f"{problem}. Run the step outside of the graph")
        if device not in self.generators:
            # Devices get different parts of the seed in the order of their first use, which is the same in all
            # processes of a run.
            self.generators[device] = generator(device, *self.seed.spawn(1))
        return self.generators[device]

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        remedy = "Call make_private for another run, or save state_dict() to resume this one"
        why = "because both copies would draw the same noise"
        raise UnsupportedError(f"generators of a private run are not copied or pickled, {why}. {remedy}")


@dataclass(frozen=True)
class Streams:
    """The four independent random streams of a run.

    ``sampler`` draws batches, ``projection`` draws projections and other public random matrices, ``noise`` draws noise,
    and ``forward`` seeds the forward passes.
    """

    sampler: Stream
    projection: Stream
    noise: Stream
    forward: Stream
    is_insecure: bool = False


def streams(insecure_seed: int | None = None, spent: int = 0, processes: Processes | None = None) -> Streams:
    """Return random streams seeded by the operating system or, for tests, by a number.

    ``spent`` is the number of earlier releases. It is part of an insecure seed, so that a resumed run does not repeat
    its noise. All processes of a run share the seeds of the sampler and the projection.
    """
    if insecure_seed is not None:
        insecure_seed = integer("insecure_seed", insecure_seed, "an integer from 0 to 2^128", 0, 2**128)
    entropy = secrets.randbits(ENTROPY_BITS) if insecure_seed is None else [insecure_seed, spent]
    shared = entropy if processes is None else processes.agree(entropy)
    sampler, projection, *local = np.random.SeedSequence(shared, pool_size=POOL_SIZE).spawn(4)
    if insecure_seed is None:
        # Each process draws its own seeds for noise and forward passes and does not send them to other processes.
        local = [np.random.SeedSequence(secrets.randbits(ENTROPY_BITS), pool_size=POOL_SIZE) for _ in local]
    return Streams(Stream(sampler), Stream(projection), *map(Stream, local), is_insecure=insecure_seed is not None)


@contextmanager
def unchanged_numbers(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Restore the random states of torch, NumPy and Python after a ``with`` block.

    For torch these are the default generators of the CPU and of the GPUs in ``devices``.
    """
    numpy_rng: Any = np.random.mtrand._rand  # pyright: ignore[reportAttributeAccessIssue]
    generators = [torch.default_generator, *(device_generator(device) for device in devices if device.type == "cuda")]
    states = [generator.get_state() for generator in generators]
    others = random.getstate(), numpy_rng.get_state(legacy=False)
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        random.setstate(others[0])
        numpy_rng.set_state(others[1])


def device_generator(device: torch.device) -> torch.Generator:
    """Return torch's default generator of a device."""
    if device.type != "cuda":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


def seed_torch(devices: Iterable[torch.device], seed: np.random.SeedSequence) -> None:
    """Set the state of torch's default generators on ``devices`` from a secret seed."""
    for device in devices:
        # Dropout masks depend on the position of a record in its batch, which depends on the other records. With a
        # known seed, an adversary would know how one record changes the contributions of other records.
        if device.type in STATE_BYTES:
            device_generator(device).set_state(generator(device, *seed.spawn(1)).get_state())


def seed_numpy_and_python(seed: int) -> None:
    """Set the seed of the global generators of NumPy and Python, a 32-bit number."""
    random.seed(seed)
    np.random.mtrand._rand.seed(seed)  # pyright: ignore[reportAttributeAccessIssue]


def seed_record(secret: str, step: int, number: int) -> None:
    """Set the seeds of torch on the CPU, NumPy and Python for one record in one step.

    The seeds depend on ``secret``, the step and the number of the record only.
    """
    digest = sha256(f"{secret} {step} {number}".encode()).digest()
    # For speed the seeds are short: 64 bits for torch, 32 bits for NumPy and Python.
    torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little"))
    seed_numpy_and_python(int.from_bytes(digest[8:12], "little"))


class EpochSecrets:
    """The random secrets that determine the balls-in-bins batches of each epoch.

    ``seed`` makes the secrets repeatable, for tests only. ``keep`` stores the number and the secret of a new epoch.
    ``begun`` has the number and the secret of an epoch to resume.
    """

    def __init__(
        self, seed: str | None = None, keep: Callable[[int, str], None] = lambda *_: None,
        begun: tuple[int, str] | None = None,
    ) -> None:  # fmt: skip
        self.seed, self.keep = seed, keep
        self.epoch, self.secret = begun or (-1, "")

    def of(self, epoch: int, processes: Processes) -> str:
        """Return the secret of an epoch of balls-in-bins, the same in all processes.

        A new secret is stored before batches are drawn from it.
        """
        # Only process 0 knows the stored secret, and only process 0 stores new ones.
        self.epoch, self.secret = processes.agree((self.epoch, self.secret))
        if epoch != self.epoch:
            # Each epoch has a fresh secret, so two copies of a run draw different batches in later epochs.
            secret = secrets.token_hex(ENTROPY_BITS // 8)
            if self.seed is not None:
                secret = sha256(f"{self.seed} {epoch}".encode()).hexdigest()
            secret = processes.agree(secret)
            with processes.together():
                self.keep(epoch, secret)
            self.epoch, self.secret = epoch, secret
        return self.secret


def pick_batches(secret: str, epoch: int, records: int, batches: int) -> np.ndarray:
    """Return the number of the batch that each record picks in an epoch, from 0.

    Picks are uniform and independent. The same arguments give the same picks on every machine.
    """
    # Rejection sampling with t batches: words w <= 2^64 - (2^64 mod t) - 1 are accepted. There is a multiple of t of
    # them, so w mod t is uniform.
    last = np.uint64(2**64 - 2**64 % batches - 1)
    accepted, part = np.empty(0, "<u8"), 0
    while len(accepted) < records:
        drawn = shake_256(f"{secret} {epoch} {part}".encode()).digest(8 * (records - len(accepted)))
        numbers = np.frombuffer(drawn, "<u8")
        accepted, part = np.concatenate([accepted, numbers[numbers <= last]]), part + 1
    return (accepted % np.uint64(batches)).astype(np.int64)


def generator(device: torch.device, seed: np.random.SeedSequence) -> torch.Generator:
    """Return a random generator on a device, with a state from ``seed``.

    On the CPU and on CUDA devices the whole state comes from ``seed``, on other devices only 64 bits.
    """
    rng = torch.Generator(device=device)
    if device.type not in STATE_BYTES:
        return rng.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
    state = rng.get_state()
    _check_length(state, device)
    if device.type == "cpu":
        numbers = state.numpy()[FIRST_WORD : FIRST_WORD + 8 * STATE_SIZE].view(np.uint64)
        numbers[:] = seed.generate_state(STATE_SIZE, np.uint32)
        # torch.initial_seed returns this number, and programs seed other generators with it. So it is random, and it
        # is not a part of the state above.
        state.numpy()[:8].view(np.uint64)[:] = seed.spawn(1)[0].generate_state(1, np.uint64)
    else:
        state.numpy().view(np.uint64)[:] = philox_state(seed)
    return rng.set_state(state)


def _check_length(state: torch.Tensor, device: torch.device) -> None:
    if state.numel() != STATE_BYTES[device.type]:
        problem = f"the state of torch's generator on {device} must be {STATE_BYTES[device.type]} bytes long"
        raise RuntimeError(f"{problem}, got {state.numel()}. Use a version of torch that privproj supports.")


def philox_state(seed: np.random.SeedSequence) -> tuple[int, int]:
    """Return a random 64-bit seed and a random counter offset for a CUDA generator.

    The offset is a multiple of 4 below 2^62, so it has 60 random bits.
    """
    key, offset = seed.generate_state(2, np.uint64)
    return int(key), int(offset) % LARGEST_OFFSET // 4 * 4


def normal(shape: tuple[int, ...], like: torch.Tensor, stream: Stream | torch.Generator) -> torch.Tensor:
    """Return independent standard normal numbers, with the dtype and device of ``like``."""
    drawn = stream.on(like.device) if isinstance(stream, Stream) else stream
    # An active TorchFunctionMode would otherwise intercept the call and could return other numbers.
    with torch._C.DisableTorchFunction():
        return torch.randn(shape, generator=drawn, dtype=like.dtype, device=like.device)


def orthonormal(
    rows: int, columns: int, like: torch.Tensor, stream: Stream | torch.Generator
) -> tuple[torch.Tensor, ...]:
    """Return the QR factors of a random Gaussian matrix, rows x columns.

    The columns of the first factor are orthonormal and span a uniformly random subspace. ``columns`` is at most
    ``rows``.
    """
    gaussian = normal((rows, columns), like, stream)
    # In double precision if the device supports it: larger rounding errors of Q could increase the norm of a clipped
    # gradient.
    q, r = torch.linalg.qr(gaussian if gaussian.device.type == "mps" else gaussian.double())
    return q.to(like), r.to(like)
