"""Data in mapped files: the same numbers, names and training as in memory."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsift import trees
from fedsift.algorithms import EFLoPS
from fedsift.channels import TopM
from fedsift.data import DataError, FederatedData, MappedWriter, open_mapped, save_mapped
from fedsift.training import train
from tests.laws import bit_equal, linear_problem, rows

OUTCOMES = ("regression", "binary", "multiclass", "poisson")


def write(folder: Path, data: FederatedData, *, ids: bool = False) -> FederatedData:
    """Write the rows site by site, as one would who never had all of them."""
    with MappedWriter(
        folder,
        outcome=data.outcome,
        classes=data.classes,
        features=data.features,
        target=data.target,
    ) as writer:
        for name, part in zip(data.sites, data.slices, strict=True):
            y = data.y[part].tolist()
            writer.add(
                name,
                data.x[part],
                [data.classes[code] for code in y] if data.classes else y,
                weight=data.weight[part],
                ids=data.rows[part] if ids else None,
            )
    return open_mapped(folder)


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_was_written_is_read(outcome: str, ids: bool, tmp_path: Path) -> None:
    data = replace(rows(outcome), notes=("a note",), descriptions={"x1": "β-catenin"})
    data = replace(data, weight=torch.arange(1.0, data.n_samples + 1))
    if ids:
        data = replace(data, rows=tuple(f"patient {'é' * (n % 3)}{n}" for n in range(32)))
    one = write(tmp_path / "one", data, ids=ids)
    two = save_mapped(data, tmp_path / "two")
    for mapped in (one, two):
        for name in ("x", "y", "weight"):
            assert torch.equal(getattr(mapped, name), getattr(data, name))
            assert getattr(mapped, name).dtype == getattr(data, name).dtype
        for name in ("offsets", "sites", "features", "outcome", "classes", "target"):
            assert getattr(mapped, name) == getattr(data, name)
        assert tuple(mapped.rows) == data.rows
        assert mapped.rows[-1] == data.rows[-1]
        assert mapped.fingerprint() == data.fingerprint()
        assert mapped.site("hospital c").rows == data.site("hospital c").rows
    assert (two.notes, two.descriptions) == (data.notes, data.descriptions)
    assert save_mapped(one, tmp_path / "three").fingerprint() == data.fingerprint()


@pytest.mark.parametrize("engine", ["vectorized", "loop"])
def test_training_is_the_same_bit_for_bit(engine: str, tmp_path: Path) -> None:
    data = rows("binary")
    mapped = write(tmp_path / "mapped", data)
    runs = [
        train(
            linear_problem(source),
            source,
            EFLoPS(density=0.25, batch_size=4),
            rounds=6,
            seeds=(0, 1),
            participation=0.6,
            channel=TopM(3),
            engine=engine,
            evaluate_every=2,
            evaluate_sites=3,
        )
        for source in (data, mapped)
    ]
    assert bit_equal(runs[0].carried.server, runs[1].carried.server)
    assert bit_equal(runs[0].carried.store.kept, runs[1].carried.store.kept)
    for one, other in zip(runs[0].history, runs[1].history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_images_have_no_features_and_keep_their_shape(tmp_path: Path) -> None:
    with MappedWriter(tmp_path / "a", outcome="binary", classes=("no", "yes")) as writer:
        writer.add("a", torch.ones(2, 1, 3, 3), ["no", "yes"])
        writer.add("b", np.zeros((1, 1, 3, 3)), ["yes"])  # one class: nothing a site must have
    mapped = open_mapped(tmp_path / "a")
    assert mapped.x.shape == (3, 1, 3, 3)
    assert mapped.features == ()
    assert mapped.y.tolist() == [0, 1, 1]


def test_opening_reads_no_row_and_cuts_are_checked(tmp_path: Path) -> None:
    """A number that was damaged on disk is found when rows are copied, not when they are mapped."""
    mapped = write(tmp_path / "a", rows())
    path = tmp_path / "a" / "x.npy"
    content = bytearray(path.read_bytes())
    content[-4:] = np.float32("nan").tobytes()
    path.write_bytes(content)
    again = open_mapped(tmp_path / "a")
    assert again.pooled().n_sites == 1
    with pytest.raises(DataError, match="finite"):
        again.take([again.n_samples - 1])
    assert mapped.n_samples == again.n_samples


def test_a_folder_is_whole_or_absent(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "a"

    def stopped() -> None:
        with MappedWriter(folder, outcome="regression") as writer:
            writer.add("a", torch.ones(2, 3), [1.0, 2.0])
            assert [path.name[:3] for path in folder.parent.iterdir()] == [".a-"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert list(folder.parent.iterdir()) == []


def write_two(folder: Path, name: str, x: torch.Tensor, y: Any, ids: Any = None) -> None:
    with MappedWriter(folder, outcome="regression") as writer:
        writer.add("a", torch.ones(2, 3), [1.0, 2.0])
        writer.add(name, x, y, ids=ids)


WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "another shape": (("b", torch.ones(1, 4), [1.0]), r"site 'b': 3 feature names for rows of"),
    "not finite": (("b", torch.tensor([[1.0, 2.0, torch.inf]]), [1.0]), "site 'b': x must be"),
    "lengths": (("b", torch.ones(2, 3), [1.0]), "site 'b': y has length 1 for 2 rows"),
    "text": (("b", torch.ones(1, 3), ["high"]), "site 'b'"),
    "no row": (("b", torch.ones(0, 3), []), "site 'b': offsets"),
    "ids of some": (("b", torch.ones(1, 3), [1.0], ["b7"]), "ids for some sites only"),
    "twice": (("a", torch.ones(1, 3), [1.0]), "site 'a' was written before"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_site_that_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    site, message = WRONG[name]
    with pytest.raises(DataError, match=message):
        write_two(tmp_path / "a", *site)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_opened_or_written_is_said(tmp_path: Path) -> None:
    data = rows()
    folder = tmp_path / "a"
    with pytest.raises(DataError, match=r"holds no data.json; give a folder that"):
        open_mapped(folder)
    save_mapped(data, folder)
    with pytest.raises(DataError, match="a exists; give a new folder"):
        save_mapped(data, folder)
    with pytest.raises(DataError, match="no site was written"):
        MappedWriter(tmp_path / "none", outcome="regression").__enter__().__exit__(None, None, None)
    holes = replace(data, x=torch.zeros_like(data.x), missing=torch.ones_like(data.x).bool())
    with pytest.raises(DataError, match="fill them first"):
        save_mapped(holes, tmp_path / "holes")
    facts = json.loads((folder / "data.json").read_text())
    (folder / "data.json").write_text(json.dumps({**facts, "version": 9}))
    with pytest.raises(DataError, match="format version 9, this release reads 1"):
        open_mapped(folder)
    (folder / "data.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        open_mapped(folder)
    (folder / "data.json").write_text(json.dumps(facts))
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-4])
    with pytest.raises(DataError, match="is damaged"):
        open_mapped(folder)


def test_large_states_and_few_sites_of_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """26 sites of which 5 take part, states in files; what was kept is of visited sites alone."""
    monkeypatch.setattr("fedsift.rows.IN_MEMORY", 256)
    data = write(tmp_path / "a", rows(sizes=(3,) * 26))
    run = train(
        linear_problem(data),
        data,
        EFLoPS(density=0.25),
        rounds=4,
        participation=5,
        channel=TopM(3),
        evaluate_sites=7,
    )
    visited = set().union(*(record["sites"] for record in run.history))
    assert len(run.carried.store.row_of) == len(visited) < data.n_sites
    assert [record.get("evaluated_sites") for record in run.history] == [7, None, None, 7]
    assert all(len(leaf) == len(visited) for leaf in trees.leaves(run.carried.store.kept))
