"""The life of a request on a run folder: crashes, edge cases, batches, fallback, verification."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsift.cli import main
from fedsift.data import FederatedData
from fedsift.run_folder import RunError, write_facts
from fedsift.runs import load_run
from fedsift.settings import Settings
from fedsift.sources import Source
from fedsift.unlearning.audit import append_record, read_audit
from fedsift.unlearning.process import FOLDER, Orders, forget_in_run, open_ledger
from fedsift.unlearning.scope import Scope
from fedsift.unlearning.verify import verify_run
from fedsift.workflows import run_fit

SITES = "abcd"
FAST: dict[str, Any] = {"rounds": 12, "target": 0.71, "local_steps": 1}  # met in nine rounds


def write_run(folder: Path) -> Path:
    """Write four site files of 12 features, and a small run of them that chose 4 features."""
    random = np.random.default_rng(0)
    truth = random.normal(size=12) * (np.arange(12) < 4) * 2
    for site in SITES:
        x = random.normal(size=(24, 12))
        sick = x @ truth + random.normal(size=24) > 0
        lines = ["patient," + ",".join(f"g{i}" for i in range(12)) + ",sick"]
        lines += [
            ",".join([f"{site}{i}", *(f"{v:.4f}" for v in x[i]), "yes" if sick[i] else "no"])
            for i in range(24)
        ]
        (folder / f"{site}.csv").write_text("\n".join(lines) + "\n")
    source = Source(
        files=tuple(str(folder / f"{s}.csv") for s in SITES), target="sick", id_column="patient"
    )
    settings = Settings(features=4, seeds=1, splits=1, rounds=6, tuning_rounds=10)
    described = source.model_dump(mode="json")
    cases = source.cases(settings)
    run_fit(cases, settings, source=described, path=folder / "run", beside=())
    return folder / "run"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site files and of the run."""
    return write_run(tmp_path_factory.mktemp("forget")).parent


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Iterator[Path]:
    """A copy of the run; the site files are shared, and put back when a test takes one away."""
    shutil.copytree(original / "run", tmp_path / "run")
    kept = {s: (original / f"{s}.csv").read_bytes() for s in SITES}
    yield tmp_path / "run"
    for site, content in kept.items():
        (original / f"{site}.csv").write_bytes(content)


def orders(method: str = "fumegs", **more: Any) -> Orders:
    return Orders(method=method, options={} if method == "retrain" else FAST, **more)


def model(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


def test_a_site_is_forgotten_and_recorded(folder: Path) -> None:
    before = model(folder)
    report = forget_in_run(folder, Scope(sites=("c",)), orders())
    assert (report.status, report.guarantee) == ("verified", "empirical")
    assert "not a proof" in report.statement
    assert model(folder) != before
    assert report.rounds > 1
    records = read_audit(folder / FOLDER / "audit.jsonl")
    assert len(records) == 1
    assert records[0]["rows_forgotten"] == 24
    run = load_run(folder)
    assert list(run.facts["data"]["sites"]) == ["a", "b", "d"]
    assert verify_run(folder).holds


def test_its_name_is_purged_and_known_again_by_its_hash(folder: Path, original: Path) -> None:
    shutil.copy(original / "c.csv", original / "cardiology_x.csv")
    forget_in_run(folder, Scope(sites=("c",)), orders())
    texts = [folder / "run.json", folder / "history.jsonl", folder / FOLDER / "audit.jsonl"]
    for file in texts:
        assert '"c"' not in file.read_text(), file
        assert "/c.csv" not in file.read_text(), file
    with open_ledger(folder) as ledger:
        assert ledger.is_forgotten("site", "c")
        assert not ledger.is_forgotten("site", "a")
        assert ledger.participation("c") == []
        assert ledger.participation("a") == [("search", 0, 0, 6)]
        assert [r.scope for r in ledger.requests()] == [None]


def test_retraining_equals_a_fit_without_the_site(folder: Path, original: Path) -> None:
    """Bit for bit: the reported model of `fedsift fit` on the other three files."""
    report = forget_in_run(folder, Scope(sites=("c",)), orders("retrain"))
    assert report.guarantee == "exact given preprocessing"
    run = load_run(folder)
    source = Source(
        files=tuple(str(original / f"{s}.csv") for s in "abd"), target="sick", id_column="patient"
    )
    settings = run.settings.model_copy(update={"splits": 0})
    cases = source.cases(settings)
    alone = run_fit(cases, settings, beside=())
    assert all((run.params[k] == v).all() for k, v in alone.params.items())
    assert [f.name for f in run.features] == [f.name for f in alone.features]
    assert verify_run(folder).holds


def test_exact_is_said_only_when_the_operator_declares_the_tuning_redone(folder: Path) -> None:
    report = forget_in_run(folder, Scope(sites=("c",)), orders("retrain", tuning_redone=True))
    assert report.guarantee == "exact"
    assert "as the operator declared" in report.statement


def test_asking_twice_is_asking_once(folder: Path) -> None:
    first = forget_in_run(folder, Scope(sites=("c",)), orders())
    after = model(folder)
    second = forget_in_run(folder, Scope(sites=("c",)), orders())
    assert (second.status, second.stop_reason) == ("no_op", "already_forgotten")
    assert second.request_id == first.request_id
    assert model(folder) == after
    assert len(read_audit(folder / FOLDER / "audit.jsonl")) == 1


def test_an_unknown_site_is_a_recorded_no_op(folder: Path) -> None:
    before = model(folder)
    report = forget_in_run(folder, Scope(sites=("x",)), orders())
    assert (report.status, report.stop_reason) == ("no_op", "unknown")
    assert "no site is called 'x'" in report.notes[0]
    assert model(folder) == before
    with open_ledger(folder) as ledger:
        assert [r.state for r in ledger.requests()] == ["no_op"]


def test_nothing_named_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="nothing is named"):
        forget_in_run(folder, Scope(), orders())


def test_all_sites_are_refused(folder: Path) -> None:
    before = model(folder)
    with pytest.raises(ValueError, match="start a new model with fedsift fit"):
        forget_in_run(folder, Scope(sites=tuple(SITES)), orders())
    assert model(folder) == before


def test_requests_that_wait_are_merged_whatever_their_order(folder: Path, tmp_path: Path) -> None:
    """Two requests queued in either order give the same batch and the same model."""
    found = []
    for number, names in enumerate((("a3", "b4"), ("b4", "a3"))):
        run = tmp_path / f"run-{number}"
        shutil.copytree(folder, run)
        with open_ledger(run) as ledger:
            ledger._put("salt", "00")
            facts = load_run(run).facts
            first = ledger.receive(
                Scope(rows=names[:1]), facts["files"]["model.safetensors"], "fumegs"
            )
            ledger.move(first.id, "validated")
            ledger.move(first.id, "queued")
        forget_in_run(run, Scope(rows=names[1:]), orders())
        records = read_audit(run / FOLDER / "audit.jsonl")
        assert len(records) == 1
        assert records[0]["rows_forgotten"] == 2
        found.append((model(run), records[0]["batch"]))
    assert found[0] == found[1]


def test_a_site_that_is_away_is_waited_for_then_the_fallback_runs(
    folder: Path, original: Path
) -> None:
    (original / "c.csv").unlink()
    now = [1_000_000.0]
    waiting = orders(clock=lambda: now[0], deadline_days=2.0)
    report = forget_in_run(folder, Scope(sites=("c",)), waiting)
    assert (report.status, report.stop_reason) == ("queued", "site_offline")
    now[0] += 3 * 86_400
    report = forget_in_run(folder, Scope(sites=("c",)), waiting)
    assert (report.status, report.method) == ("verified", "retrain")
    assert read_audit(folder / FOLDER / "audit.jsonl")[0]["fallback_used"]


def test_it_pauses_without_a_site_that_is_kept(folder: Path, original: Path) -> None:
    (original / "a.csv").unlink()
    with pytest.raises(RunError, match="forgetting pauses until every site that is kept"):
        forget_in_run(folder, Scope(sites=("c",)), orders())


def test_changed_data_are_refused(folder: Path, original: Path) -> None:
    text = (original / "a.csv").read_text()
    (original / "a.csv").write_text(text.replace("yes", "no", 1))
    with pytest.raises(RunError, match="not those"):
        forget_in_run(folder, Scope(sites=("c",)), orders())


def test_a_target_that_is_not_met_leaves_the_model(folder: Path) -> None:
    """The mean probability of 24 rows' labels cannot be brought to 0 in one round."""
    before = model(folder)
    impossible = replace(orders(), options={"rounds": 1, "target": 0.0})
    report = forget_in_run(folder, Scope(sites=("c",)), impossible)
    assert report.status == "target_not_met"
    assert model(folder) == before
    again = forget_in_run(folder, Scope(sites=("c",)), orders("retrain"))
    assert again.status == "verified"
    assert again.request_id == report.request_id
    statuses = [r["status"] for r in read_audit(folder / FOLDER / "audit.jsonl")]
    assert statuses == ["target_not_met", "verified"]


def unseen_rows(original: Path, count: int = 24, sick: str = "sick") -> Path:
    """A file of rows of site c that the run never saw."""
    random = np.random.default_rng(9)
    lines = ["patient," + ",".join(f"g{i}" for i in range(12)) + f",{sick}"]
    lines += [
        ",".join(
            [f"new{i}", *(f"{v:.4f}" for v in random.normal(size=12)), "yes" if i % 2 else "no"]
        )
        for i in range(count)
    ]
    file = original / f"unseen-{count}-{sick}.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


@pytest.mark.parametrize("method", ["fumegs", "retrain"])
def test_membership_is_told_from_rows_never_seen(folder: Path, original: Path, method: str) -> None:
    """The figures are those of the attack by loss on the two sets of rows, with intervals."""
    from fedsift.data import read_table
    from fedsift.linear_problems import linear_problem
    from fedsift.unlearning.membership import infer, scores

    file = unseen_rows(original)
    before = load_run(folder)
    report = forget_in_run(folder, Scope(sites=("c",)), orders(method, held_out=file))
    after = load_run(folder)
    (record,) = read_audit(folder / FOLDER / "audit.jsonl")
    assert record["rows_held_out"] == 24
    assert any("24 rows held out resolve" in note for note in record["notes"])
    for when, run in (("before", before), ("after", after)):
        sides = []
        for table in (original / "c.csv", file):
            rows = read_table(
                table,
                run.standardiser.features,
                target="sick",
                classes=run.facts["data"]["classes"],
            )
            assert rows.y is not None
            x = run.standardiser.transform(rows.x, rows.features)
            problem = linear_problem(run_rows(original), run.settings.gate)
            sides.append(scores(problem, run.params, x, rows.y, "loss"))
        found = infer(*sides)
        assert record["measures"][when]["membership_auc"] == pytest.approx(found.auc.value)
        assert record["measures"][when]["tpr_at_1_fpr"] == pytest.approx(found.tpr_at_1_fpr.value)
        low, high = record["intervals"][when]["membership_auc"]
        assert (low, high) == pytest.approx((found.auc.low, found.auc.high))
    assert (
        report.intervals["after"]["retain_accuracy"][0]
        < report.measures["after"]["retain_accuracy"]
    )
    assert verify_run(folder).holds


def run_rows(original: Path) -> FederatedData:
    files = tuple(str(original / f"{s}.csv") for s in SITES)
    source = Source(files=files, target="sick", id_column="patient")
    return source.cases(Settings(features=4, splits=0))[-1].train


def test_rows_held_out_say_when_to_stop(folder: Path, original: Path) -> None:
    """Without splits the run has no loss of rows never seen; the file has one."""
    facts = load_run(folder).facts
    del facts["held_out_loss"]
    write_facts(folder, facts)
    with pytest.raises(ValueError, match="give --target P or --held-out FILE"):
        forget_in_run(folder, Scope(sites=("c",)), Orders(options={"rounds": 3}))
    asked = Orders(options={"rounds": 30}, held_out=unseen_rows(original))
    report = forget_in_run(folder, Scope(sites=("c",)), asked)
    unseen = report.measures["before"]["held_out_loss"]
    met = report.measures["after"]["forget_loss"] >= unseen - 1e-6
    assert met == (report.status == "verified")


def test_a_retrained_model_is_measured_beside_and_not_kept(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "alone")
    report = forget_in_run(folder, Scope(sites=("c",)), orders(reference=True))
    alone = forget_in_run(tmp_path / "alone", Scope(sites=("c",)), orders("retrain"))
    assert list(report.measures) == ["before", "after", "retrain"]
    assert report.measures["retrain"] == alone.measures["after"]
    assert model(folder) != model(tmp_path / "alone")
    assert not list((folder / FOLDER).glob("reference-*"))


def test_a_target_that_is_lost_when_gates_are_cut_is_met_on_the_kept_features(
    tmp_path: Path,
) -> None:
    """3 of 3051 genes: what closed gates let through counts, so a second run follows the cut."""
    settings = Settings(
        features=3, seeds=1, splits=0, rounds=10, tuning_rounds=30, standardise="array"
    )
    source = Source(demo="golub")
    described = source.model_dump(mode="json")
    run_fit(source.cases(settings), settings, source=described, path=tmp_path / "run", beside=())
    asked = Orders(options={"rounds": 60, "target": 0.9})
    report = forget_in_run(tmp_path / "run", Scope(sites=("site_3",)), asked)
    assert (report.status, report.stop_reason) == ("verified", "target_met")
    assert int((load_run(tmp_path / "run").params["weight"] != 0).any(0).sum()) <= 3
    records = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    rounds = [r["round"] for r in map(json.loads, records) if r["stage"] == "forget"]
    assert len(rounds) == report.rounds
    assert rounds.count(1) == 2


def test_a_target_is_a_mean_of_probabilities(folder: Path) -> None:
    """exp of the mean log-probability is .66 from the start, the mean probability .72: not met."""
    report = forget_in_run(folder, Scope(sites=("c",)), orders(method="fumegs"))
    assert report.status == "verified"
    before, after = (report.measures[when]["forget_loss"] for when in ("before", "after"))
    assert np.exp(-before) < FAST["target"]
    assert after > before


class Crash(BaseException):
    """A power cut."""


def crash_at(place: str, count: int) -> Callable[[str], None]:
    """Strike at the ``count``-th commit, before or after it."""
    seen = [0]

    def fault(where: str) -> None:
        if where.startswith(place):
            seen[0] += 1
            if seen[0] == count:
                raise Crash(where)

    return fault


@pytest.fixture(scope="module")
def undisturbed(original: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """The run before, with a fixed salt, and the model that forgetting without a crash gives."""
    run = tmp_path_factory.mktemp("calm") / "run"
    shutil.copytree(original / "run", run)
    with open_ledger(run) as ledger:
        ledger._put("salt", "00")
    copy = run.with_name("copy")
    shutil.copytree(run, copy)
    forget_in_run(copy, Scope(sites=("c",)), orders())
    return run, model(copy)


@pytest.mark.parametrize("place", ["before", "after"])
@pytest.mark.parametrize("count", range(1, 8))
def test_a_crash_at_any_write_of_the_ledger_changes_nothing(
    undisturbed: tuple[Path, bytes], tmp_path: Path, place: str, count: int
) -> None:
    """Participation, receipt, validation, queue, batch, staging, end: seven commits."""
    start, expected = undisturbed
    run = tmp_path / "run"
    shutil.copytree(start, run)
    with pytest.raises(Crash):
        forget_in_run(run, Scope(sites=("c",)), orders(fault=crash_at(place, count)))
    report = forget_in_run(run, Scope(sites=("c",)), orders())
    assert model(run) == expected
    assert len(read_audit(run / FOLDER / "audit.jsonl")) == 1
    assert report.status in {"verified", "no_op"}
    assert verify_run(run).holds


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4])
def test_a_crash_between_the_files_changes_nothing(
    undisturbed: tuple[Path, bytes], tmp_path: Path, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Model, table, history, facts and record are five files; the crash is before the step-th."""
    from fedsift import run_folder
    from fedsift.unlearning import audit, commit

    start, expected = undisturbed
    run = tmp_path / "run"
    shutil.copytree(start, run)
    written = [0]

    def strike(real: Callable[..., Any]) -> Callable[..., Any]:
        def write(path: Path, content: bytes) -> None:
            if path.parent == run or path.name == "audit.jsonl":
                if written[0] == step:
                    raise Crash(str(path))
                written[0] += 1
            real(path, content)

        return write

    with monkeypatch.context() as patched:
        for module in (run_folder, audit, commit):
            patched.setattr(module, "write_atomic", strike(module.write_atomic))
        with pytest.raises(Crash):
            forget_in_run(run, Scope(sites=("c",)), orders())
    report = forget_in_run(run, Scope(sites=("c",)), orders())
    assert report.status == "verified"
    assert model(run) == expected
    assert len(read_audit(run / FOLDER / "audit.jsonl")) == 1
    assert verify_run(run).holds


def test_verify_sees_a_changed_model_and_a_changed_record(folder: Path) -> None:
    forget_in_run(folder, Scope(sites=("c",)), orders())
    audit = folder / FOLDER / "audit.jsonl"
    text = audit.read_text()
    audit.write_text(text.replace('"status": "verified"', '"status": "no_op"'))
    found = verify_run(folder)
    assert found.checks == {"chain": False}
    assert not found.holds
    audit.write_text(text)
    (folder / "model.safetensors").write_bytes(model(folder)[:-1] + b"x")
    assert verify_run(folder).checks["model"] is False


def test_a_record_can_be_signed(tmp_path: Path) -> None:
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    from cryptography.hazmat.primitives import serialization

    from fedsift.signing import check_signature

    keys = []
    for name in ("own.pem", "other.pem"):
        key = ed25519.Ed25519PrivateKey.generate()
        keys.append(tmp_path / name)
        keys[-1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
    content = {"batch": "1", "guarantee": "empirical"}
    record = append_record(tmp_path / "audit.jsonl", content, keys[0])
    assert check_signature(record, keys[0])
    assert not check_signature(record, keys[1])
    (tmp_path / "no.pem").write_text("x")
    with pytest.raises(RunError, match="no unencrypted Ed25519 key"):
        check_signature(record, tmp_path / "no.pem")


def spoil(sql: str) -> Callable[[Path], None]:
    """Return what changes a ledger behind fedsift's back."""

    def change(file: Path) -> None:
        with closing(sqlite3.connect(file)) as db:
            db.execute(sql)
            db.commit()

    return change


def make_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


BAD_REQUEST = (
    "insert into requests values "
    "('z','{bad','h','m','fumegs',null,'queued',null,0,null,null,null,null)"
)
SPOILED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no database": (lambda file: file.write_text("x" * 5000), "file is not a database"),
    "half of it": (lambda file: file.write_bytes(file.read_bytes()[:9000]), "malformed"),
    "a folder": (make_folder, "unable to open"),
    "other tables": (spoil("alter table requests rename column method to how"), "its tables"),
    "a newer version": (spoil("update facts set value = 9 where name = 'version'"), "version 9"),
    "no scope": (spoil(BAD_REQUEST), "double quotes"),
    "no plan": (spoil("insert into batches values ('z', '{bad', null, 0)"), "double quotes"),
    "emptied": (lambda file: file.write_bytes(b""), "is gone"),
    "removed": (lambda file: file.unlink(), "is gone"),
}


@pytest.mark.parametrize("how", list(SPOILED))
def test_a_damaged_ledger_is_named_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    """A request that was carried out is there: without its ledger, what is gone could come back."""
    forget_in_run(folder, Scope(rows=("a1",)), orders("retrain"))
    before = model(folder)
    change, says = SPOILED[how]
    change(folder / FOLDER / "ledger.sqlite")
    commands = [["forget", str(folder), "--site", "c", "-q"], ["requests", str(folder)]]
    for command in commands[: 1 if how == "no plan" else 2]:
        assert main(command) == 2
        line = capsys.readouterr().err
        assert says in line
        assert "ledger.sqlite" in line
        assert line.count("\n") == 1
    assert model(folder) == before


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is empty"),
        (b"junk", "line 1"),
        (b"\xff\xfe", "line 1"),
        (b"[1]", "line 1"),
        (b'{"hash": 1}', "the chain of hashes breaks there"),
    ],
)
def test_a_damaged_record_stops_a_request_before_anything_is_done(
    folder: Path, capsys: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    forget_in_run(folder, Scope(rows=("a1",)), orders("retrain"))
    before = model(folder)
    (folder / FOLDER / "audit.jsonl").write_bytes(content)
    assert main(["forget", str(folder), "--site", "c", "--method", "retrain", "-q"]) == 2
    line = capsys.readouterr().err
    assert says in line
    assert "restore the file from a copy" in line
    assert model(folder) == before
    assert main(["verify", str(folder)]) == 3
    assert says in capsys.readouterr().out


def test_what_was_forgotten_is_a_no_op_and_cannot_come_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forget_in_run(folder, Scope(sites=("c",)), orders("retrain"))
    assert main(["forget", str(folder), "--site", "c", "-q"]) == 0
    assert "it was forgotten before" in capsys.readouterr().out
    assert main(["forget", str(folder), "--site", "d", "--site", "c", "--method", "retrain"]) == 0
    assert list(load_run(folder).facts["data"]["sites"]) == ["a", "b"]


def test_a_regression_is_refused_by_what_needs_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    random = np.random.default_rng(1)
    files = []
    for site in SITES:
        x = random.normal(size=(12, 3))
        lines = ["g0,g1,g2,y", *(",".join(f"{v:.4f}" for v in (*row, row[0])) for row in x)]
        files.append(str(tmp_path / f"{site}.csv"))
        Path(files[-1]).write_text("\n".join(lines) + "\n")
    small = ["--features", "1", "--seeds", "1", "--splits", "0", "--rounds", "2"]
    run = str(tmp_path / "run")
    assert main(["fit", *files, "--target", "y", *small, "--out", run, "-q"]) == 0
    capsys.readouterr()
    for more, says in (
        ([], "use --method retrain"),
        (["--method", "retrain", "--held-out", files[0]], "leave the rows held out away"),
    ):
        assert main(["forget", run, "--site", "c", *more, "-q"]) == 2
        line = capsys.readouterr().err
        assert says in line
        assert line.count("\n") == 1
    assert main(["forget", run, "--site", "c", "--method", "retrain", "-q"]) == 0
    assert "membership" not in capsys.readouterr().out


def test_the_ledger_is_in_wal_mode(folder: Path) -> None:
    with open_ledger(folder) as ledger:
        mode = ledger._db.execute("pragma journal_mode").fetchone()[0]
    assert mode == "wal"
    assert sqlite3.connect(folder / FOLDER / "ledger.sqlite").execute(
        "select count(*) from requests"
    ).fetchone() == (0,)


def test_the_command_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["forget", str(folder), "--site", "c", "--target", "0.9", "--rounds", "6", "--json"]
    assert main([*args, "-q"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {"request_id", "status", "stop_reason", "guarantee", "audit_record"} <= set(report)
    assert report["guarantee"] == "empirical"
    assert (folder / FOLDER / "forget.png").stat().st_size > 1000
    assert main(["verify", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verified"]
    assert main(["verify", str(folder)]) == 0
    assert "no proof" in capsys.readouterr().out
    assert main(["requests", str(folder), "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["requests"]
    assert [r["status"] for r in listed] == ["verified"]
    assert main(["report", str(folder)]) == 0
    assert main(["predict", str(folder), str(folder.parent / "nothing.csv")]) == 2
    capsys.readouterr()


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ([], "nothing is named to forget"),
        (["--site", "x"], "no site is called 'x'"),
        (["--site", "c", "--method", "x"], "no method 'x' to forget with"),
        (["--site", "c", "--fallback", "x"], "no method 'x' to forget with"),
        (["--site", "c", "--fallback", "mgda"], "mgda needs the site that leaves"),
        (["--row", "nobody"], "no row is called 'nobody'"),
        (["--class", "maybe"], "no class is called 'maybe'"),
        (["--site", "a", "--site", "b", "--site", "c", "--site", "d"], "nothing would be left"),
        (
            ["--site", "c", "--method", "retrain", "--target", ".1"],
            "retrain has no option 'target'",
        ),
        (["--site", "c", "--target", "7"], "target"),
        (["--site", "c", "--method", "continue", "--target", ".1"], "has no option 'target'"),
        (["--site", "c", "--method", "federaser"], "needs the stored updates"),
        (["--site", "c", "--key", "nowhere.pem", "--method", "retrain"], "nowhere.pem"),
        (["--site", "c", "--held-out", "nowhere.csv"], "nowhere.csv"),
        (["--site", "c", "--held-out", "SITES/c.csv"], "is a row of the run"),
        (["--site", "c", "--held-out", "SITES/unseen-4-ill.csv"], "has no column 'sick'"),
    ],
)
def test_wrong_use_ends_in_one_line(
    folder: Path, original: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    before = model(folder)
    unseen_rows(original, 4, "ill")
    more = [word.replace("SITES", str(original)) for word in more]
    assert main(["forget", str(folder), *more, "-q"]) == 2
    line = capsys.readouterr().err
    assert says in line
    assert line.count("\n") == 1
    assert model(folder) == before


@pytest.mark.parametrize("command", ["forget", "verify", "requests"])
def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    more = ["--site", "c"] if command == "forget" else []
    assert main([command, str(tmp_path / "nowhere"), *more]) == 2
    assert capsys.readouterr().err.count("\n") == 1
