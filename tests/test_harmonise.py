"""What a site's instruments add to its features changes nothing once sites are harmonised."""

from typing import Any

import numpy as np
import pytest
import torch

import fedsift
from fedsift.cli import main
from fedsift.data import FederatedData
from fedsift.exports import ExportError, export_run

KNOBS: dict[str, Any] = {
    "features": 2,
    "seeds": 1,
    "splits": 2,
    "rounds": 8,
    "tuning_rounds": 10,
    "beside": (),
}


def drawn(offset: float = 0.0, scale: float = 1.0, n: int = 60) -> FederatedData:
    """Make three sites; site b measures with an offset and a scale of its own in each feature."""
    draw = np.random.default_rng(1)
    x, sites = draw.normal(size=(n, 5)), np.array(list("abc"))[np.arange(n) % 3]
    y = 2 * x[:, 0] - x[:, 1] + 0.1 * draw.normal(size=n)
    own = draw.normal(size=5)
    x = np.where((sites == "b")[:, None], x * scale + offset * own, x)
    age = draw.normal(60, 10, size=n)
    names = [*(f"g{i}" for i in range(5)), "age"]
    data = FederatedData.from_arrays(
        np.column_stack([x, age]), y + 0.01 * age, sites=sites, features=names
    )
    return data.with_covariates(["age"])


@pytest.mark.parametrize(("how", "scale"), [("location", 1.0), ("location-scale", 3.0)])
def test_what_a_site_adds_to_its_features_does_not_change_the_fit(how, scale):
    one, other = (
        fedsift.fit(data, harmonise=how, **KNOBS) for data in (drawn(), drawn(5.0, scale))
    )
    for leaf, value in one.params.items():
        torch.testing.assert_close(value, other.params[leaf], rtol=1e-3, atol=1e-4)
    assert one.results["test_r2"]["mean"] == pytest.approx(
        other.results["test_r2"]["mean"], abs=1e-3
    )
    site = drawn(5.0, scale).site("b")
    plain = drawn().site("b")
    told = other.predict(site.x, site.features)
    assert told == pytest.approx(one.predict(plain.x, plain.features), abs=1e-2)


def test_every_feature_is_centred_at_every_site_and_covariates_are_left():
    data = drawn(5.0, 3.0)
    own = data.harmonised("location-scale")
    for name in data.sites:
        x = own.site(name).x
        torch.testing.assert_close(x[:, :5].mean(0), torch.zeros(5), atol=1e-5, rtol=0)
        torch.testing.assert_close(x[:, :5].std(0, correction=0), torch.ones(5))
        assert torch.equal(x[:, 5], data.site(name).x[:, 5])


def test_what_does_not_go_with_it_is_refused(tmp_path, capsys):
    with pytest.raises(ValueError, match="looks at whole rows"):
        fedsift.fit(drawn(), harmonise="location", standardise="array", **KNOBS)
    run = fedsift.fit(drawn(), harmonise="location", **KNOBS | {"splits": 0}, out=tmp_path / "r")
    with pytest.raises(ExportError, match="use predict"):
        export_run(run, str(tmp_path / "m.onnx"), overwrite=False)
    assert main(["forget", str(tmp_path / "r"), "--site", "b"]) == 2
    assert "fit anew without them" in capsys.readouterr().err
