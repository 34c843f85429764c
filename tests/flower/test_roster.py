"""Before the first round: who is there, and whether all speak of the same columns."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedsift.data import DataError, FederatedData, Standardiser, golub38, iid, read_sites, split
from fedsift.data.site_files import SiteFile
from fedsift.deployment.at_site import node as node_of
from fedsift.deployment.demo import write_sites
from fedsift.deployment.plan import Plan
from fedsift.engines.flower.node import Node
from fedsift.engines.flower.roster import classes_of, connect, difference
from fedsift.run_folder import RunError
from fedsift.settings import Settings
from tests.flower.fake import QUICK, FakeGrid
from tests.laws import rows

pytestmark = pytest.mark.filterwarnings("ignore::fedsift.data.DataWarning")


def plan_of(files: list[Path], **knobs: Any) -> Plan:
    settings = Settings(features=3, seeds=1, splits=0)
    given = {"sites": [f.stem for f in files], "target": "target", "id_column": "id"}
    return Plan(**({"settings": settings} | given | knobs))


def nodes(files: list[Path], plan: Plan) -> dict[int, Node]:
    config = plan.to_config()
    return {n: node_of({"data": str(file)}, config) for n, file in enumerate(files, start=11)}


def connected(files: list[Path], plan: Plan) -> Any:
    grid: Any = FakeGrid(nodes(files, plan))
    return connect(grid, "test", plan.wanted, sites=plan.sites, policy=QUICK, wait=1.0)


def files_of(data: FederatedData, folder: Path) -> list[Path]:
    return write_sites(data, folder)


def test_site_files_are_what_read_sites_makes_of_them(tmp_path: Path) -> None:
    """The same rows, splits and standardisation, from files that nobody sees together."""
    files = files_of(rows("multiclass", sizes=(12, 7, 15)), tmp_path)
    here = read_sites(files, "target", id_column="id")
    far = connected(files, plan_of(files))
    assert far.sites == tuple(sorted(here.sites))
    assert (far.sizes, far.classes, far.outcome) == (here.sizes, here.classes, here.outcome)
    assert torch.equal(far.y.sort().values, here.y.sort().values)
    for seed in (0, 1):
        for mine, theirs in zip(split(far, seed), split(here, seed), strict=True):
            assert (mine.sites, mine.sizes) == (theirs.sites, theirs.sizes)
            one, other = Standardiser.fit(mine, "feature"), Standardiser.fit(theirs, "feature")
            assert one.to_dict() == other.to_dict()


def test_labels_are_read_at_the_sites_as_here(tmp_path: Path) -> None:
    """Empty cells are labels that are not known; of each a site tells which values it has."""
    files = files_of(rows("multilabel", sizes=(12, 7, 15)), tmp_path)
    here = read_sites(files, ["a", "b"], id_column="id")
    far = connected(files, plan_of(files, target="a,b"))
    assert (far.outcome, far.classes, far.target) == (here.outcome, here.classes, here.target)
    assert (far.sizes, far.features) == (here.sizes, here.features)
    assert int((here.y < 0).sum()) > 0
    for seed in (0, 1):
        for mine, theirs in zip(split(far, seed), split(here, seed), strict=True):
            assert (mine.sites, mine.sizes) == (theirs.sites, theirs.sizes)
    said = SiteFile(files[0], "s", "a,b", id_column="id").describe()["labels"]
    assert said["seen"] == {"a": [0, 1], "b": [-1, 0, 1]}
    said["seen"] |= {"b": [-1, 1]}
    with pytest.raises(DataError, match="the label 'b' is 1 in all rows of all sites; leave it"):
        classes_of({"s": {"labels": said}}, "auto")


def test_missing_values_are_filled_with_the_means_of_all_sites(tmp_path: Path) -> None:
    files = files_of(rows("binary", sizes=(12, 7, 15)), tmp_path)
    for file in files[:2]:
        lines = file.read_text().splitlines()
        cells = lines[3].split(",")
        lines[3] = ",".join([*cells[:4], "", *cells[5:]])
        file.write_text("\n".join(lines))
    here = read_sites(files, "target", id_column="id", impute="mean")
    far = connected(files, plan_of(files, impute="mean"))
    assert Standardiser.fit(far).to_dict() == Standardiser.fit(here).to_dict()
    assert Standardiser.fit(far).fills


def test_columns_that_differ_are_named_with_their_site(tmp_path: Path) -> None:
    files = files_of(rows("binary", sizes=(12, 7, 15)), tmp_path)
    text = files[1].read_text()
    files[1].write_text(text.replace("x3,", "weight,", 1))
    with pytest.raises(DataError, match=r"'hospital b' lacks 'x3' and has 'weight' besides"):
        connected(files, plan_of(files))
    files[1].write_text(text.replace("x3,x4", "x4,x3", 1))
    with pytest.raises(DataError, match=r"'hospital b' has columns in another order .* 'x4', 'x3'"):
        connected(files, plan_of(files))


def test_small_sites_decline_or_weigh_alike(tmp_path: Path) -> None:
    files = files_of(rows("binary", sizes=(12, 3, 15)), tmp_path)
    far = connected(files, plan_of(files))
    assert far.sites == ("hospital a", "hospital c")
    assert far.notes == ("site 'hospital b' declined: it has fewer than 5 rows",)
    uniform = connected(files, plan_of(files, below_min_rows="uniform"))
    weights = [float(uniform.weight[rows].sum()) for rows in uniform.slices]
    assert weights == pytest.approx([12.0, 5.0, 15.0])


def test_a_file_that_cannot_be_used_is_named_and_not_quoted(tmp_path: Path) -> None:
    files = files_of(rows("binary", sizes=(12, 7, 15)), tmp_path)
    text = files[2].read_text()
    files[2].write_text(text.replace(text.splitlines()[2].split(",")[5], "secret"))
    plan = plan_of(files)
    grid: Any = FakeGrid(nodes(files, plan))
    with pytest.raises(RuntimeError, match="cannot be used") as caught:
        connect(grid, "test", plan.wanted, sites=plan.sites, policy=HASTY, wait=1.0)
    assert "secret" not in str(caught.value)
    assert all(b"secret" not in str(m.content).encode() for m in grid.got)


HASTY = QUICK.__class__(deadline=0.1, patience=0.2, poll=0.0)


def test_sites_agree_on_the_classes_of_all() -> None:
    """A site with one class knows of the others; measured values tell nothing."""

    def said(**kinds: tuple[str, list[str]]) -> dict[str, Any]:
        return {s: {"labels": {"kind": k, "names": n}} for s, (k, n) in kinds.items()}

    both = said(a=("text", ["ALL"]), b=("text", ["AML", "ALL"]))
    assert classes_of(both, "auto") == ("binary", ("ALL", "AML"))
    whole = said(a=("whole", ["0", "2"]), b=("whole", ["10", "1"]))
    assert classes_of(whole, "auto") == ("multiclass", ("0", "1", "2", "10"))
    assert classes_of(said(a=("measured", []), b=("whole", ["1"])), "auto") == ("regression", ())
    with pytest.raises(DataError, match="text at 'b'"):
        classes_of(said(a=("measured", []), b=("text", ["x"])), "auto")
    with pytest.raises(DataError, match="one value"):
        classes_of(said(a=("text", ["x"])), "auto")
    assert difference("a", {"features": ["x"]}, "b", {"features": ["x"]}) is None


def test_what_is_told_of_a_measured_target_is_nothing(tmp_path: Path) -> None:
    file = files_of(rows("regression", sizes=(12,)), tmp_path)[0]
    labels = SiteFile(file, "a", "target", id_column="id").describe()["labels"]
    assert labels == {"kind": "measured", "names": []}


def test_a_plan_goes_through_flowers_configuration(tmp_path: Path) -> None:
    files = [tmp_path / "a b.csv", tmp_path / "c,d.csv"]
    plan = plan_of(files, drop=("x, y", "z"), quorum=2, out=str(tmp_path), impute="mean")
    knobs = plan.settings.model_copy(update={"knobs": {"entropy": 0.01}})
    plan = plan.model_copy(update={"settings": knobs})
    assert Plan.from_config(plan.to_config()) == plan
    assert all(isinstance(v, str | int | float | bool) for v in plan.to_config().values())
    for wrong, reason in (
        ({"sites": ["a", "a"]}, "named twice"),
        ({"quorum": 3}, "2 sites"),
        ({"quorum": 1.5}, "fraction"),
        ({"settings": Settings(method="central", features=1)}, "no federated method"),
    ):
        with pytest.raises(ValueError, match=reason):
            plan_of(files, **wrong)


def test_the_app_holds_the_plan(tmp_path: Path) -> None:
    from fedsift.deployment.writing import read_plan, write_app

    plan = plan_of([tmp_path / "a.csv", tmp_path / "b.csv"])
    written = write_app(tmp_path / "app", plan)
    assert read_plan(tmp_path / "app") == plan
    assert "flower-superlink" in (tmp_path / "app" / "README.md").read_text()
    with pytest.raises(RunError, match="exists already"):
        write_app(tmp_path / "app", plan)
    assert {path.name for path in written} >= {"server_app.py", "client_app.py", "pyproject.toml"}
    with pytest.raises(RunError, match="not the app"):
        read_plan(tmp_path)


def test_the_app_holds_groups_whatever_they_are_called(tmp_path: Path) -> None:
    from fedsift.deployment.writing import read_plan, write_app

    groups = {"péptide 'a'": ["g1", 'g "2"'], "b\\n": ["g3"]}
    files = [tmp_path / "a.csv", tmp_path / "b.csv"]
    plan = plan_of(files, settings=Settings(features=1, groups=groups))
    write_app(tmp_path / "app", plan)
    assert read_plan(tmp_path / "app") == plan
    assert plan.settings.groups == groups


def test_demo_files_hold_the_same_numbers(tmp_path: Path) -> None:
    data = iid(golub38(), 3, seed=0)
    back = read_sites(write_sites(data, tmp_path), "diagnosis", id_column="id")
    assert back.fingerprint() == data.fingerprint()
