"""Streams of random numbers: independent of each other, secret, and never drawn twice."""

import copy
import os
import pickle
import random
import signal

import numpy as np
import pytest
from helpers import needs
from scipy import stats

torch = needs("torch", "opacus")

from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.training.helpers import data, mlp, one_step, own, private, step  # noqa: E402

from privproj.errors import PrivprojError  # noqa: E402
from privproj.training.generators import (  # noqa: E402
    LARGEST_OFFSET,
    STATE_BYTES,
    Stream,
    generator,
    normal,
    orthonormal,
    philox_state,
    seed_torch,
    streams,
    unchanged_numbers,
)

CPU = torch.device("cpu")


def test_global_seed_determines_nothing():
    x, y = data()
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        runs.append(one_step(mlp(), x, y, noise_multiplier=1.0))
    assert not torch.allclose(*runs)
    assert torch.equal(*(one_step(mlp(), x, y, noise_multiplier=1.0, insecure_seed=3) for _ in range(2)))


def test_streams_are_independent():
    first = streams(insecure_seed=1)
    draws = [normal((4,), torch.zeros(1), s) for s in (first.sampler, first.projection, first.noise)]
    draws.append(normal((4,), torch.zeros(1), streams(insecure_seed=1, spent=5).noise))
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_generator_has_more_state_than_torch_would_seed():
    """torch's own seed has 32 bits: seeds 2^32 apart give the same numbers. Ours come from the whole sequence."""
    seeds = [np.random.SeedSequence([1, high]) for high in (0, 1)]
    condition = [generator(CPU, s).get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64) for s in seeds]
    assert (condition[0] == seeds[0].generate_state(624, np.uint32)).all() and (
        condition[0] != condition[1]
    ).mean() > 0.99
    draw = torch.randn(100_000, generator=generator(CPU, np.random.SeedSequence(5)))
    assert stats.kstest(draw.numpy(), "norm").pvalue > 1e-4


def test_all_entropy_of_a_seed_reaches_the_numbers():
    """numpy's default pool of 128 bits would be filled by half of it."""
    pool = streams().noise.seed.pool
    assert pool.nbytes * 8 == 256 and len(set(pool.tolist())) == 8
    assert not np.array_equal(pool, streams().noise.seed.pool)


def test_gpu_seed_and_offset_are_random():
    """124 bits: the offset is a multiple of 4 below half of what torch can keep."""
    drawn = [philox_state(np.random.SeedSequence(i)) for i in range(2000)]
    keys, offsets = (np.array(column, dtype=object) for column in zip(*drawn, strict=True))
    assert all(offset % 4 == 0 and 0 <= offset < LARGEST_OFFSET for offset in offsets)
    assert stats.kstest([key / 2**64 for key in keys], "uniform").pvalue > 1e-4
    assert stats.kstest([offset / LARGEST_OFFSET for offset in offsets], "uniform").pvalue > 1e-4
    assert len({key % 16 for key in keys}) == len({offset // 4 % 16 for offset in offsets}) == 16


def test_seed_that_torch_tells_is_secret_too():
    """Programs seed other generators from it: torch's own default would be public masks."""
    shown_values = []
    for stream in (streams().forward, streams().forward):
        for _ in range(2):
            with unchanged_numbers():
                seed_torch([CPU], stream.fresh_seed())
                shown_values.append(torch.initial_seed())
                condition = torch.get_rng_state().numpy()[24:].view(np.uint64)
                assert shown_values[-1] not in (
                    torch.Generator().initial_seed(),
                    int(condition[0] | condition[1] << np.uint64(32)),
                )
    assert len(set(shown_values)) == 4


def test_unchanged_numbers_restores_torch_numpy_and_python():
    draw = lambda: (float(torch.rand(())), np.random.rand(), random.random())  # noqa: E731
    with unchanged_numbers():
        expected = draw()
    with unchanged_numbers():
        seed_torch([CPU], np.random.SeedSequence(1))
        np.random.seed(1)
        random.seed(1)
        assert all(one != other for one, other in zip(draw(), expected, strict=True))
    assert draw() == expected


def test_state_of_another_length_is_rejected(monkeypatch):
    monkeypatch.setitem(STATE_BYTES, "cpu", 16)
    with pytest.raises(RuntimeError, match="must be 16 bytes long"):
        generator(CPU, np.random.SeedSequence(0))


def test_no_two_devices_share_a_generator_and_each_keeps_its_own():
    """Two names of the CPU stand for two devices: the same seed must not serve both."""
    stream, again = (Stream(np.random.SeedSequence(1)) for _ in range(2))
    places = [torch.device("cpu"), torch.device("cpu", 0)]
    assert places[0] != places[1]
    first, second = (torch.randn(5, generator=stream.on(place)) for place in places)
    assert not torch.equal(first, second)
    assert stream.on(places[0]) is stream.on(places[0])
    assert torch.equal(first, torch.randn(5, generator=again.on(places[0])))


# --- noise is never repeated ------------------------------------------------------------------------


def in_fork(do):
    """What a function says in a forked process, as text."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(100)  # a process forked from threads may wait for ever
        try:
            message = str(do())
        except BaseException as error:
            message = f"{type(error).__name__}: {error}"
        os.write(write, message.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        message = file.read()
    os.waitpid(child, 0)
    return message


def test_forked_process_draws_no_noise():
    x, y = data()
    module = mlp()
    _, optimizer, _ = private(module, x, y, noise_multiplier=1.0)
    message = in_fork(lambda: step(module, optimizer, x, y))
    assert message.startswith("InvalidParameterError: process must be the process that seeded the random numbers")
    assert "Call make_private in each process" in message
    step(module, optimizer, x, y)


def test_forked_processes_that_make_their_own_streams_differ():
    def draw():
        return normal((3,), torch.zeros(1), streams().noise).tolist()

    assert len({in_fork(draw), in_fork(draw), str(draw())}) == 3


def test_workers_of_a_loader_are_forked_and_draw_no_noise():
    x, y = data(40)
    module = mlp()
    _, optimizer, loader = private(module, x, y, steps=3, sampling_rate=0.5)
    workers = DataLoader(TensorDataset(x, y), batch_size=4, num_workers=2, multiprocessing_context="fork")
    loader.settings |= {"num_workers": 2, "timeout": 100, "multiprocessing_context": workers.multiprocessing_context}
    while optimizer.steps_done < 3:
        for batch in loader:
            optimizer.backward_on(own(module), batch)
            optimizer.step()
    assert optimizer.steps_done == 3


@pytest.mark.parametrize("double", [copy.copy, copy.deepcopy, pickle.dumps])
def test_stream_has_no_copy(double):
    drawn = streams()
    for stream in (drawn.sampler, drawn.projection, drawn.noise):
        with pytest.raises(PrivprojError, match="both copies would draw the same noise"):
            double(stream)


def test_nothing_that_holds_a_stream_is_copied():
    _, optimizer, _ = private(mlp(), *data())
    for part in (optimizer._noisy_sum.streams, optimizer._noisy_sum):
        with pytest.raises(PrivprojError, match="not copied or pickled"):
            copy.deepcopy(part)


def test_account_names_a_seed_that_repeats_a_run():
    _, optimizer, _ = private(mlp(), *data(), insecure_seed=1)
    assert optimizer._spending.account.insecure


@pytest.mark.parametrize(("rows", "columns"), [(64, 8), (1024, 16), (2048, 64)])
def test_frame_lengthens_nothing(rows, columns):
    """In single precision the largest singular value would exceed 1 by up to half the slack of the clip."""
    q, r = orthonormal(rows, columns, torch.empty(0), streams(3).projection)
    gram = q.double().T @ q.double()
    assert float(torch.linalg.matrix_norm(gram - torch.eye(columns, dtype=torch.float64), 2)) < 5e-8
    assert q.dtype is r.dtype is torch.float32
