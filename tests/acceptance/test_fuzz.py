"""What comes from outside is read or refused, whatever it is: messages, answers, site files."""

from __future__ import annotations

import json
import random
import resource
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from fedsift import messages, trees
from fedsift.data import DataError, read_sites
from fedsift.engines.flower import Policy
from fedsift.engines.flower.parts import Part
from fedsift.engines.flower.wire import DATA, END, HEAD, pack, unpack
from fedsift.linear_problems import linear_problem
from fedsift.training import Training, train
from tests.flower.fake import FakeGrid, connected, nodes_of
from tests.laws import CHANNELS, every_algorithm, largest_gap, normal, rows

SLOW = 5.0  # seconds for one message or file
GIGABYTE = 1 << 20  # KiB, as getrusage counts
long = pytest.mark.acceptance_long


def few(count: int, many: int) -> Any:
    return pytest.mark.parametrize("count", [count, pytest.param(many, marks=long)])


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def bent(draw: random.Random, content: bytes) -> bytes:
    """Return the bytes with a few of them changed, cut out, repeated or put in."""
    raw = bytearray(content)
    for _ in range(draw.randint(1, 3)):
        place, length = draw.randrange(len(raw) + 1), draw.randint(1, 40)
        kind = draw.randrange(5)
        if kind == 0:
            raw[place : place + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            del raw[place:]
        elif kind == 2:
            del raw[place : place + length]
        elif kind == 3:
            raw[place:place] = draw.randbytes(length)
        else:
            raw[place:place] = raw[place : place + length] * draw.randint(1, 9)
    return bytes(raw)


@few(1_000, 9_000)
def test_bent_messages_are_refused_or_fit_their_schema(count: int, figure: Any) -> None:
    """A message that is read has the schema's shapes and finite numbers."""
    draw, refused, before, slowest = random.Random(count), 0, peak(), 0.0
    weight = normal(4, 30)
    sparse = {"weight": weight * (weight.abs() > 1.5), "bias": normal(4), "count": torch.arange(3)}
    held = trees.zeros_like(sparse)
    changed = {k: v != 0 for k, v in sparse.items()}
    whole = [messages.encode(sparse), messages.encode(sparse, changed)]
    for _ in range(count):
        began = time.monotonic()
        try:
            found = messages.decode(bent(draw, draw.choice(whole)), sparse, held)
        except messages.MessageError:
            refused += 1
        else:
            assert [(k, v.shape, v.dtype) for k, v in found.items()] == [
                (k, v.shape, v.dtype) for k, v in sparse.items()
            ]
            assert trees.all_finite(found)
        slowest = max(slowest, time.monotonic() - began)
    figure(f"{count} bent messages: refused, slowest in s", [refused, round(slowest, 3)])
    assert slowest < SLOW
    assert peak() - before < GIGABYTE


NONSENSE: tuple[Any, ...] = (
    None,
    -1,
    1 << 70,
    1e400,
    "",
    "x",
    [],
    {},
    [[]],
    {"a": []},
    True,
    [0, 0, 0],
    "\ud800",
)


def spoiled(draw: random.Random, answer: Message) -> None:
    """Spoil the envelope of an answer, never the numbers that a site may choose freely."""
    (site, (part, *_)), *_ = unpack(answer.content).items()
    facts, blobs = json.loads(json.dumps(part.facts)), list(part.blobs)
    kind = draw.randrange(6)
    head: Any = answer.content[HEAD]
    if kind == 0:
        facts[draw.choice(sorted(facts))] = draw.choice(NONSENSE)
    elif kind == 1:
        del facts[draw.choice(sorted(facts))]
    elif kind == 2:
        blobs = [blob[: draw.randrange(len(blob))] for blob in blobs]
    elif kind == 3:
        blobs = draw.choice([blobs[1:], blobs * 2, [], [b"", *blobs]])
    elif kind == 4:
        site = draw.choice(["", "nobody", "hospital a", site * 50])
    else:
        head["parts"] = bent(draw, head["parts"].encode()).decode("latin1")
        return
    try:
        answer.content = pack({site: [Part(facts, tuple(blobs))]})
    except (ValueError, TypeError):
        head["parts"] = "{"


@few(60, 1_000)
def test_a_spoiled_answer_is_refused_and_changes_nothing(
    count: int, tmp_path: Path, figure: Any
) -> None:
    """The run is the simulator's in which the refused uploads were lost."""
    draw, here, site = random.Random(count), rows("binary", sizes=(9, 5, 8)), "hospital b"
    algorithm = every_algorithm(0.25, rounds=count, learning_rate=0.05)["fedavg"]
    knobs: Any = {"channel": CHANNELS["feedback"], "evaluate_every": count, "compile": False}

    def fault(_node: int, _number: int, answer: Message) -> list[tuple[int, Message]]:
        for name, parts in unpack(answer.content).items():
            if name == site and any(part.facts.get("kind") == "exchange" for part in parts):
                spoiled(draw, answer)
        return [(0, answer)]

    patient = Policy(quorum=2, deadline=0.02, patience=20.0, poll=0.0)
    remote = connected(here, FakeGrid(nodes_of(here, tmp_path), fault), policy=patient)
    far: Training = train(linear_problem(remote), remote, algorithm, **knobs)
    lost = {r["round"] - 1 for r in far.history if site in r.get("remarks", {})}

    def delivery(tick: int, _seed: torch.Tensor, sites: torch.Tensor) -> torch.Tensor:
        return torch.tensor([here.sites[c] != site or tick not in lost for c in sites.tolist()])

    near = train(linear_problem(here), here, algorithm, delivery=delivery, **knobs)
    figure(f"{count} spoiled answers: refused", len(lost))
    assert len(lost) > count // 2
    assert largest_gap(far.carried.server, near.carried.server) <= 1e-5


def table(draw: random.Random) -> bytes:
    head = "id,target,age,gene 1,gene 2"
    lines = [f"{i},{i % 2},{draw.random():.3f},{i},{-i}" for i in range(12)]
    return "\n".join([head, *lines, ""]).encode()


WRONG: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    bent,
    bent,
    bent,
    lambda _, raw: b"\xef\xbb\xbf" + raw,
    lambda _, raw: raw.decode().encode("utf-16"),
    lambda _, raw: raw.replace(b"gene", b"g\xe9ne"),
    lambda _, raw: raw.replace(b"\n", b"\r\n"),
    lambda _, raw: raw.replace(b"3,1", b"\0,1"),
    lambda _, raw: raw.replace(b"age", b'"a\nge"').replace(b"7,1", b'"7\n7",1'),
    lambda _, raw: raw + b'9,1,"' + b"x" * 100_000 + b"\n",
    lambda _, raw: raw.replace(b"5,1", b"=cmd|' /C calc'!A0,1"),
    lambda _, raw: raw.split(b"\n")[0],
    lambda _, raw: b"",
    lambda _, raw: b"\x89PNG\r\n" + raw,
    lambda draw, raw: raw.replace(b"id,", b"id," + b"c," * draw.randrange(9000)),
)


@few(60, 500)
def test_a_wrong_file_is_read_or_refused_in_one_line(
    count: int, tmp_path: Path, figure: Any
) -> None:
    """Files of a site, spoiled in many ways, with another ending now and then."""
    draw, before = random.Random(count), peak()
    refused, slowest = list[tuple[str, str]](), 0.0
    for number in range(count):
        ending = draw.choice(["csv", "csv", "tsv", "parquet"])
        file = tmp_path / f"site {number}.{ending}"
        file.write_bytes(WRONG[number % len(WRONG)](draw, table(draw)))
        began = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                read_sites(file, "target", id_column="id")
        except DataError as error:
            refused.append((file.name, str(error)))
        slowest = max(slowest, time.monotonic() - began)
    figure(f"{count} wrong files: refused, slowest in s", [len(refused), round(slowest, 3)])
    assert all(name in text and "\n" not in text and len(text) < 1000 for name, text in refused)
    assert slowest < SLOW
    assert peak() - before < GIGABYTE


@long
def test_huge_tables_need_bounded_memory(tmp_path: Path, figure: Any) -> None:
    """A line of 100 MB, and a million columns: refused, with a clear error, in less than 1 GB."""
    long_line = tmp_path / "line.csv"
    long_line.write_bytes(b"id,target,age\n1,1," + b"9" * 100_000_000 + b"\n2,0,5\n")
    wide = tmp_path / "wide.csv"
    names = ",".join(f"c{i}" for i in range(1_000_000)).encode()
    wide.write_bytes(b"id,target," + names + b"\n" + b"1,1" + b",0" * 1_000_000 + b"\n")
    for file in (long_line, wide):
        before, began = peak(), time.monotonic()
        with pytest.raises(DataError) as refusal:
            read_sites(file, "target", id_column="id")
        figure(
            f"{file.name}: seconds, MiB, what is said",
            [round(time.monotonic() - began, 1), (peak() - before) >> 10, str(refusal.value)],
        )
        assert peak() - before < GIGABYTE


def test_the_end_of_a_message_is_not_optional() -> None:
    packed = pack({"a": [Part({}, (b"abc",))]})
    array: Any = packed[DATA]
    assert bytes(array["bytes"].data) == b"abc" + END
