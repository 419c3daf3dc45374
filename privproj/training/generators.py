"""Random streams: one each for the sampler, projection, noise and forward passes, never shared and never repeated.

torch seeds its CPU generator with 32 bits only, which can be tried out. Here its whole state is filled with randomness
of the operating system, and on a GPU both the seed and the offset of its counter are: 124 bits. The generators are not
cryptographic, and a floating-point Gaussian is not exactly one. Which record picks which batch of an epoch comes from
SHAKE-256, since it has to be drawn again, on any machine, where a killed run goes on.
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
from privproj.training.processes import Processes

ENTROPY_BITS = 256  # soundness
"""Bits that the operating system gives for the streams of one run: too many to try all."""

POOL_WORDS = ENTROPY_BITS // 32  # soundness
"""Words of 32 bits in which numpy mixes these bits; its default has half of them."""

WORDS = 624
"""Words of 32 bits in the state of the Mersenne twister in torch (Matsumoto and Nishimura 1998)."""

FIRST_WORD = 24
"""Bytes before the first word in the state as torch serializes it: three fields of 8."""

STATE_BYTES = {"cpu": 5056, "cuda": 16}
"""Length in bytes of the state of a generator on each type of device; on the CPU every word takes 8.
Another length raises an error."""

CPU = torch.device("cpu")
"""The device of the generators that torch, numpy and Python draw from where none is named."""

LARGEST_OFFSET = 2**62
"""Bound on the first offset of a GPU's counter, which torch keeps as a signed number of 64 bits. The rest is left for
counting."""


class Stream:
    """Random numbers that are drawn once: in the process that seeded them, and from no copy.

    There is one generator for each device, made when that device is first drawn on. Each takes another part of the
    seed, in the order of first use, which is the same in all processes of a run.
    """

    def __init__(self, seed: np.random.SeedSequence) -> None:
        self.seed, self.process = seed, os.getpid()
        self.generators: dict[torch.device, torch.Generator] = {}

    def fresh_seed(self) -> np.random.SeedSequence:
        """Return a seed that nothing else is drawn from; raises where it could be repeated."""
        self.check_process()
        return self.seed.spawn(1)[0]

    def check_process(self) -> None:
        """Raise in a process other than the one that seeded the stream."""
        if os.getpid() != self.process:
            expected = f"the process that seeded the random numbers ({self.process})"
            remedy = "call make_private in each process, because a forked process repeats the noise"
            raise InvalidParameterError("process", os.getpid(), expected, remedy)

    def on(self, device: torch.device) -> torch.Generator:
        """Return the generator on a device; raises where a draw from it could be repeated."""
        self.check_process()
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            words = "a step cannot be part of a CUDA graph, because the ledger would not count its replays"
            raise UnsupportedError(f"{words}. Run the step outside of the graph")
        if device not in self.generators:
            self.generators[device] = generator(device, *self.seed.spawn(1))
        return self.generators[device]

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        remedy = "Call make_private for another run, or save state_dict() to resume this one"
        why = "because both copies would draw the same noise"
        raise UnsupportedError(f"generators of a private run are not copied or pickled, {why}. {remedy}")


@dataclass(frozen=True)
class Streams:
    """Four independent streams. The global seed of torch plays no role in any of them."""

    sampler: Stream
    projection: Stream
    noise: Stream
    forward: Stream
    is_insecure: bool = False


def streams(insecure_seed: int | None = None, spent: int = 0, processes: Processes | None = None) -> Streams:
    """Return streams seeded by the operating system or, for tests only, by ``insecure_seed``.

    ``spent`` is the number of releases made before: with an insecure seed, a resumed run must not repeat the noise of
    the run it continues. The processes of a run share batches and projections. The seeds of the noise and of forward
    passes never leave their process.
    """
    entropy = secrets.randbits(ENTROPY_BITS) if insecure_seed is None else [insecure_seed, spent]
    shared = entropy if processes is None else processes.agree(entropy)
    sampler, projection, *local = np.random.SeedSequence(shared, pool_size=POOL_WORDS).spawn(4)
    if insecure_seed is None:
        local = [np.random.SeedSequence(secrets.randbits(ENTROPY_BITS), pool_size=POOL_WORDS) for _ in local]
    return Streams(Stream(sampler), Stream(projection), *map(Stream, local), is_insecure=insecure_seed is not None)


@contextmanager
def unchanged_numbers(devices: Iterable[torch.device] = ()) -> Iterator[None]:
    """Let torch, numpy and Python go on drawing random numbers as if nothing had been drawn while this runs.

    ``devices`` are GPUs whose generators are restored too.
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
    """Return the generator that torch draws from on a device where none is named."""
    if device.type != "cuda":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


def seed_torch(devices: Iterable[torch.device], seed: np.random.SeedSequence) -> None:
    """Let torch draw from a secret seed on these devices.

    Dropout masks depend on the place of a record in its batch. If the seed were known, one record would change what
    others contribute in a known way.
    """
    for device in devices:
        if device.type in STATE_BYTES:
            device_generator(device).set_state(generator(device, *seed.spawn(1)).get_state())


def seed_numpy_and_python(seed: int) -> None:
    """Let numpy and Python draw from a seed of 32 bits."""
    random.seed(seed)
    np.random.mtrand._rand.seed(seed)  # pyright: ignore[reportAttributeAccessIssue]


def seed_record(secret: str, step: int, number: int) -> None:
    """Let torch on the CPU, numpy and Python draw from a seed of this record in this step.

    What is drawn for a record is then a function of it alone, so that these seeds may be short: fast, since it is done
    for every record.
    """
    digest = sha256(f"{secret} {step} {number}".encode()).digest()
    torch.default_generator.manual_seed(int.from_bytes(digest[:8], "little"))
    seed_numpy_and_python(int.from_bytes(digest[8:12], "little"))


class EpochSecrets:
    """What the picks of balls-in-bins are drawn from: a secret for each epoch, so that copies of a run part ways."""

    def __init__(
        self, seed: str | None = None, keep: Callable[[int, str], None] = lambda *_: None,
        begun: tuple[int, str] | None = None,
    ) -> None:  # fmt: skip
        self.seed, self.keep = seed, keep
        self.epoch, self.secret = begun or (-1, "")

    def of(self, epoch: int, processes: Processes) -> str:
        """Return the secret of an epoch, the same in all processes; keep a new one before anything is drawn from it."""
        # Only the first process knows what was kept, and keeps more.
        self.epoch, self.secret = processes.agree((self.epoch, self.secret))
        if epoch != self.epoch:
            secret = secrets.token_hex(ENTROPY_BITS // 8)
            if self.seed is not None:
                secret = sha256(f"{self.seed} {epoch}".encode()).hexdigest()
            secret = processes.agree(secret)
            with processes.together():
                self.keep(epoch, secret)
            self.epoch, self.secret = epoch, secret
        return self.secret


def pick_batches(secret: str, epoch: int, records: int, batches: int) -> np.ndarray:
    """Return the batch from 0 that each record picks in an epoch: uniform, and independent of other records and epochs.

    The same arguments give the same picks, on every machine and for every version of numpy and torch.
    """
    # A word w < 2^64 is taken where w <= 2^64 - (2^64 mod t) - 1, a multiple of t below: w mod t is then uniform.
    last = np.uint64(2**64 - 2**64 % batches - 1)
    accepted, part = np.empty(0, "<u8"), 0
    while len(accepted) < records:
        drawn = shake_256(f"{secret} {epoch} {part}".encode()).digest(8 * (records - len(accepted)))
        words = np.frombuffer(drawn, "<u8")
        accepted, part = np.concatenate([accepted, words[words <= last]]), part + 1
    return (accepted % np.uint64(batches)).astype(np.int64)


def generator(device: torch.device, seed: np.random.SeedSequence) -> torch.Generator:
    """Return a generator with a state from ``seed``: all of it on the CPU and on CUDA devices, 64 bits elsewhere."""
    rng = torch.Generator(device=device)
    if device.type not in STATE_BYTES:
        return rng.manual_seed(int(seed.generate_state(1, np.uint64)[0]))
    state = rng.get_state()
    _check_length(state, device)
    if device.type == "cpu":
        words = state.numpy()[FIRST_WORD : FIRST_WORD + 8 * WORDS].view(np.uint64)
        words[:] = seed.generate_state(WORDS, np.uint32)
        # The seed that torch.initial_seed tells, from which programs seed other generators: no constant, and no word.
        state.numpy()[:8].view(np.uint64)[:] = seed.spawn(1)[0].generate_state(1, np.uint64)
    else:
        state.numpy().view(np.uint64)[:] = philox_state(seed)
    return rng.set_state(state)


def _check_length(state: torch.Tensor, device: torch.device) -> None:
    """Raise if the state of a generator is not as long as it has to be."""
    if state.numel() != STATE_BYTES[device.type]:
        words = f"the state of torch's generator on {device} must be {STATE_BYTES[device.type]} bytes long"
        raise RuntimeError(f"{words}, got {state.numel()}. Use a version of torch that privproj supports.")


def philox_state(seed: np.random.SeedSequence) -> tuple[int, int]:
    """Return the seed (64 bits) and the offset (60 bits, a multiple of 4) of a CUDA generator, both from ``seed``."""
    key, offset = seed.generate_state(2, np.uint64)
    return int(key), int(offset) % LARGEST_OFFSET // 4 * 4


def normal(shape: tuple[int, ...], like: torch.Tensor, stream: Stream | torch.Generator) -> torch.Tensor:
    """Independent standard normal numbers of this shape, of the type and on the device of ``like``."""
    drawn = stream.on(like.device) if isinstance(stream, Stream) else stream
    # A mode that is on, such as the one that makes a checked loss quiet, would otherwise return its own numbers.
    with torch._C.DisableTorchFunction():
        return torch.randn(shape, generator=drawn, dtype=like.dtype, device=like.device)


def orthonormal(
    rows: int, columns: int, like: torch.Tensor, stream: Stream | torch.Generator
) -> tuple[torch.Tensor, ...]:
    """Return the factors ``(Q, R)`` of a Gaussian matrix of shape rows x columns.

    ``Q`` (rows x columns) has orthonormal columns that span a uniformly random subspace; ``R`` is columns x columns. It
    needs ``columns <= rows``. The factors are found in double precision where the device has it: what is clipped must
    not grow longer by a ``Q`` that is not quite orthonormal.
    """
    gaussian = normal((rows, columns), like, stream)
    q, r = torch.linalg.qr(gaussian if gaussian.device.type == "mps" else gaussian.double())
    return q.to(like), r.to(like)
