"""Random streams: one each for the sampler, the projection and the noise, never shared.

torch seeds its CPU generator with 32 bits only, which can be tried out. Here its whole state is filled with randomness
of the operating system. The generators are not cryptographic, and a floating-point Gaussian is not exactly one.
"""

import secrets
from dataclasses import dataclass

import numpy as np
import torch

from privproj.training.processes import Processes

WORDS = 624
"""Words of 32 bits in the state of the Mersenne twister (Matsumoto and Nishimura 1998). Contract with torch."""

FIRST_WORD = 24
"""Bytes before the first word in the state as torch serialises it: three fields of 8. Contract with torch."""

STATE_BYTES = 5056
"""Length of that state in bytes; every word takes 8. Contract with torch: another length is refused."""


@dataclass(frozen=True)
class Streams:
    """Three independent streams. The global seed of torch plays no role in any of them."""

    sampler: torch.Generator
    projection: torch.Generator
    noise: torch.Generator


def streams(
    device: torch.device | str = "cpu",
    insecure_seed: int | None = None,
    spent: int = 0,
    processes: Processes | None = None,
) -> Streams:
    """Streams seeded by the operating system or, for tests only, by ``insecure_seed``.

    ``spent`` is the number of releases made before: with an insecure seed, a resumed run must not repeat the noise of
    the run it continues. Sampling happens on the CPU, everything else on ``device``. The processes of a run share
    batches and projections. The seed of the noise never leaves its process.
    """
    entropy = secrets.randbits(256) if insecure_seed is None else [insecure_seed, spent]
    shared = entropy if processes is None else processes.agree(entropy)
    sampler, projection, noise = np.random.SeedSequence(shared).spawn(3)
    if insecure_seed is None:
        noise = np.random.SeedSequence(secrets.randbits(256))
    return Streams(generator("cpu", sampler), generator(device, projection), generator(device, noise))


def generator(device: torch.device | str, seed: np.random.SeedSequence) -> torch.Generator:
    """A generator whose state comes from ``seed``: all of it on the CPU, 64 bits elsewhere."""
    found = torch.Generator(device=device)
    found.manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)
    state = found.get_state()
    if state.device.type == "cpu" and found.device.type == "cpu":
        if state.numel() != STATE_BYTES:
            raise RuntimeError(f"expected a state of {STATE_BYTES} bytes from torch's generator, got {state.numel()}")
        words = state.numpy()[FIRST_WORD : FIRST_WORD + 8 * WORDS].view(np.uint64)
        words[:] = seed.generate_state(WORDS, np.uint32)
        found.set_state(state)
    return found


def normal(shape: tuple[int, ...], like: torch.Tensor, stream: torch.Generator) -> torch.Tensor:
    """Independent standard normal numbers of this shape, of the type and on the device of ``like``."""
    return torch.randn(shape, generator=stream, dtype=like.dtype, device=like.device)


def orthonormal(rows: int, columns: int, like: torch.Tensor, stream: torch.Generator) -> tuple[torch.Tensor, ...]:
    """The factors ``(Q, R)`` of a Gaussian matrix of shape rows x columns.

    ``Q`` (rows x columns) has orthonormal columns that span a uniformly random subspace; ``R`` is columns x columns. It
    needs ``columns <= rows``.
    """
    return torch.linalg.qr(normal((rows, columns), like, stream))
