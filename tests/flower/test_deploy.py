"""The command line of a deployment, as far as it needs no process of Flower."""

import datetime as dt
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fedsift.cli import main
from fedsift.data import DataError
from fedsift.data.dictionary import columns_fingerprint
from fedsift.deployment.at_site import node
from fedsift.deployment.demo import write_sites
from fedsift.deployment.keys import write_keys
from fedsift.deployment.plan import Plan
from fedsift.deployment.serving import serve
from fedsift.deployment.writing import read_plan
from fedsift.plans import make_plan
from fedsift.run_folder import read_facts
from fedsift.settings import Settings
from tests.flower.fake import FakeGrid
from tests.laws import rows

APP = ["--target", "diagnosis", "--features", "3"]


def test_an_app_and_its_keys_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "app"
    sites = ["--site", "berlin", "--site", "paris"]
    assert main(["deploy", str(folder), *APP, *sites, "--quorum", "1", "--seeds", "4"]) == 0
    assert "README.md" in capsys.readouterr().out
    plan = read_plan(folder)
    assert plan.sites == ("berlin", "paris")
    assert (plan.target, plan.settings.seeds, plan.settings.features) == ("diagnosis", 4, 3)
    assert plan.settings.local_steps == 10
    assert main(["deploy", str(folder), "--keys", "server.example.org"]) == 0
    assert {path.name for path in (folder / "keys").iterdir()} == {
        "ca.pem", "server.pem", "server.key", "berlin.key", "berlin.pub", "paris.key", "paris.pub",
    }  # fmt: skip
    assert main(["deploy", str(folder), "--keys", "server.example.org"]) == 2


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "--loopback N"),
        (["app", *APP], "--site is missing"),
        (["app", "--features", "3", "--site", "a"], "--target"),
        (["app", *APP, "--site", "a", "--site", "a"], "named twice"),
        (["app", *APP, "--site", "a/b"], "leave out"),
        (["app", *APP, "--site", "a", "--quorum", "2"], "1 sites"),
        (["app", *APP, "--site", "a", "--method", "central"], "no federated method"),
        (["app", *APP, "--site", "a", "--below-min-rows", "hide"], "--below-min-rows 'hide'"),
        (["app", "--keys", "host"], "not the app of a deployment"),
        (["--loopback", "2", "a.csv", *APP], "1 site files"),
        (["--loopback", "2", "--demo", "synthetic"], "golub"),
        (["--loopback", "0", "--demo", "golub"], "1 or more"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    arguments: list[str],
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["deploy", *arguments]) == 2
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_keys_are_private_and_the_certificate_is_the_servers(tmp_path: Path) -> None:
    """Signed by the authority, for the host's name and address, and for a server alone."""
    keys = write_keys(tmp_path / "keys", "10.1.2.3", ["berlin"])
    authority, server = (
        x509.load_pem_x509_certificate(path.read_bytes())
        for path in (keys.authority, keys.certificate)
    )
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert ipaddress.ip_address("10.1.2.3") in names.get_values_for_type(x509.IPAddress)
    assert server.not_valid_after_utc > dt.datetime.now(dt.UTC) + dt.timedelta(days=300)
    assert isinstance(server.public_key(), ec.EllipticCurvePublicKey)
    for path in (keys.private("berlin"), keys.server_key):
        assert path.stat().st_mode & 0o077 == 0
    assert keys.public("berlin").read_text().startswith("ecdsa-sha2-nistp384 ")
    with pytest.raises(FileExistsError):
        write_keys(tmp_path / "keys", "10.1.2.3", ["berlin"])


@pytest.mark.parametrize("moved", [False, True])
def test_a_deployment_is_of_the_columns_of_its_analysis_plan(tmp_path: Path, moved: bool) -> None:
    """The same columns in another order are others: their order is the model's."""
    data = rows("binary", sizes=(8, 9))
    files = write_sites(data, tmp_path / "sites")
    settings = Settings(features=3, seeds=1, splits=0, rounds=2, tuning_rounds=1)
    if moved:
        data = data.select_features(data.features[::-1])
    agreed = make_plan(data, settings, id_column="id")
    plan = Plan(
        settings=settings,
        sites=tuple(file.stem for file in files),
        target=data.target,
        id_column="id",
        out=str(tmp_path / "run"),
        analysis_plan=agreed.facts | {"signed": []},
        columns=columns_fingerprint(agreed.data),
    )
    config = plan.to_config()
    grid = FakeGrid({n: node({"data": str(f)}, config) for n, f in enumerate(files, start=11)})
    if moved:
        with pytest.raises(DataError, match="are not those of the analysis plan"):
            serve(grid, config)
    else:
        serve(grid, config)
        assert read_facts(tmp_path / "run")["analysis_plan"] == plan.analysis_plan
