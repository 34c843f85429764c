"""Fused and unfused work give one result; without a compiler only speed is lost."""

import itertools
import os
import shutil
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import Tensor

from fedsift import messages
from fedsift.algorithms import EFLoPS, FedAvg
from fedsift.channels import TopM
from fedsift.engines.base import Carried, Job
from fedsift.engines.grid import PADDING, SPARE, block_rows
from fedsift.engines.programs import Programs
from fedsift.engines.vectorized import Vectorized
from fedsift.robust import Median
from tests.laws import job, largest_gap, linear_problem, normal, proceed, rows

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))), reason="there is no C++ compiler"
)


def gated(
    sizes: tuple[int, ...], seeds: tuple[int, ...], regions: torch.Tensor | None = None
) -> Job:
    data = rows("regression", sizes=sizes, d=12)
    algorithm = EFLoPS(density=0.25, learning_rate=0.05, batch_size=8)
    return job(linear_problem(data), data, algorithm, TopM(3), seeds=seeds, regions=regions)


@needs_compiler
@pytest.mark.parametrize(("seeds", "participation"), [((0,), 1.0), ((0, 1, 2), 0.5)])
def test_fused_and_unfused_agree_and_nothing_is_compiled_twice(
    seeds: tuple[int, ...], participation: float, caplog: pytest.LogCaptureFixture
) -> None:
    regions = torch.tensor([0, 1, 0, 1, 2, 2]) if participation < 1 else None
    work = gated((9, 30, 12, 8, 31, 10), seeds, regions)
    fused = Vectorized(Programs(fused=True))
    plain, plain_bytes = proceed(work, Vectorized(), 10, participation)
    carried, early = proceed(work, fused, 2, participation)
    with torch.compiler.set_stance("fail_on_recompile" if participation == 1 else "default"):
        carried, late = more(work, fused, carried, range(2, 10), participation)
    assert fused.programs.fused, caplog.text
    assert largest_gap(carried.server, plain.server) <= 1e-5
    assert torch.equal(early + late, plain_bytes)


@needs_compiler
def test_a_fused_program_serves_its_own_rules_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Not every guard is kept: what differs between runs must be told apart all the same."""
    data = rows("regression", sizes=(8, 8, 8), d=6)
    problem = linear_problem(data)
    slow, fast = (FedAvg(learning_rate=rate, local_steps=1) for rate in (0.01, 0.1))
    work = [
        job(problem, data, slow),
        job(problem, data, fast),
        job(problem.with_ridge(1.0), data, fast),
        job(problem, data, fast, aggregator=Median()),
    ]
    plain = [proceed(one, Vectorized(), 3)[0].server for one in work]
    for _ in range(2):
        for one, known in zip(work, plain, strict=True):
            engine = Vectorized(Programs(fused=True))
            assert largest_gap(proceed(one, engine, 3)[0].server, known) <= 1e-6
            assert engine.programs.fused, caplog.text
    gaps = [largest_gap(a, b) for a, b in itertools.combinations(plain, 2)]
    assert min(gaps) > 1e-3


@needs_compiler
def test_a_compiler_leaves_no_rounding_out() -> None:
    value = normal(4000) * 10.0 ** normal(4000, seed=1)
    fused = torch.compile(messages.to_half, fullgraph=True)(value)
    assert torch.equal(fused, messages.to_half(value))
    assert not torch.equal(fused, value)
    told = torch.compile(messages.is_half, fullgraph=True)
    assert told(fused).all()
    assert torch.equal(told(value), messages.is_half(value))


def more(
    work: Job, engine: Vectorized, carried: Carried, numbers: range, participation: float
) -> tuple[Carried, Tensor]:
    total = torch.zeros((3, len(work.seeds)), dtype=torch.int64)
    for number in numbers:
        participants = work.participants(number, participation)
        carried, report = engine.exchange(work, carried, number, "round", participants)
        total += torch.stack([report.bytes_up, report.bytes_down, report.bytes_regions])
    return carried, total


def test_few_block_sizes_with_little_padding() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = (torch.randn(500, generator=generator) * 1.2 + 4).exp().long().clamp(min=1)
    blocks = block_rows(sizes)
    assert bool((blocks >= sizes).all())
    assert len(blocks.unique()) <= 12
    for size in blocks.unique():
        real = sizes[blocks == size]
        assert float(size * len(real)) <= PADDING * float(real.sum()) + (SPARE + 8) * len(real)


def test_without_a_compiler_only_speed_is_lost(tmp_path) -> None:
    code = """
        import logging, torch
        logging.basicConfig()
        from fedsift.engines.programs import Programs
        from fedsift.engines.vectorized import Vectorized
        from tests.laws import bit_equal, proceed
        from tests.test_programs import gated
        work, engine = gated((9, 12), (0,)), Vectorized(Programs(fused=True))
        fused, plain = (proceed(work, e, 3)[0] for e in (engine, Vectorized()))
        assert not engine.programs.fused
        assert bit_equal(fused.server, plain.server)
        """
    hidden = {"PATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "CXX": "absent"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=os.environ | hidden,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("going on without it") == 1
