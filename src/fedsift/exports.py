"""A run for other programs: predictions, coefficients, a state dict, ONNX."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from fedsift.data import Standardiser, read_table
from fedsift.data.coding import has_classes, is_count
from fedsift.data.errors import nearest
from fedsift.data.standardise import per_unit
from fedsift.run_folder import is_own
from fedsift.runs import Run
from fedsift.sealed import KEY, write_atomic


class ExportError(ValueError):
    """An export that cannot be made; the text says what to do."""


KINDS = {"coefficients": ".csv", "state_dict": ".safetensors", "onnx": ".onnx"}


def predictions(run: Run, file: Path, id_column: str | None = None, site: str | None = None) -> str:
    """Return a CSV table: id, prediction, and the probability of each class.

    Of labels: id and the probability of each. ``site``: whose own intercept counts, as for
    `Run.predict`.
    """
    data, source = run.facts["data"], run.facts["source"] or {}
    candidates = set(run.standardiser.candidates)
    rows = read_table(
        file,
        [name for name in run.needed if name in candidates],
        id_column=id_column,
        usual_id=source.get("id_column"),
        fills=run.standardiser.fills,
        covariates=run.standardiser.covariates,
        separator=source.get("separator"),
    )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    predicted = run.predict(rows.x, rows.features, site)
    classes: Sequence[str] = data["classes"]
    what = {"survival": ["relative_risk"], "multilabel": []}.get(
        data["outcome"], [f"predicted_{data['target']}"]
    )
    writer.writerow(["id", *what, *(f"probability_{name}" for name in classes)])
    chances = (
        run.predict_probability(rows.x, rows.features, site).tolist()
        if classes
        else [[]] * len(predicted)
    )
    for name, value, chance in zip(rows.rows, predicted, chances, strict=True):
        writer.writerow([name, *([value] if what else []), *(f"{p:.6g}" for p in chance)])
    return text.getvalue()


def write_text(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a text file, not over another one."""
    _refuse_existing(path, overwrite=overwrite)
    write_atomic(path, text.encode())


def export_run(run: Run, to: str, *, overwrite: bool) -> str:
    """Write the model of a run as ``to`` says; return a sentence about it."""
    kind, path = _destination(run, to)
    _refuse_existing(path, overwrite=overwrite)
    if kind == "coefficients":
        write_atomic(path, coefficients(run).encode())
    elif kind == "state_dict":
        write_atomic(path, state_dict(run))
    else:
        write_onnx(run, path)
    return f"{path}: {_about(run, kind)}"


def _destination(run: Run, to: str) -> tuple[str, Path]:
    if to in KINDS:
        return to, (run.path or Path()) / f"{'model' if to == 'onnx' else to}{KINDS[to]}"
    kind = {ending: name for name, ending in KINDS.items()}.get(Path(to).suffix)
    if kind is None:
        raise ExportError(
            f"--to {to!r} is unknown; {nearest(to, list(KINDS))}"
            f" A file's name ends in {', '.join(KINDS.values())}"
        )
    return kind, Path(to)


def _refuse_existing(path: Path, *, overwrite: bool) -> None:
    if is_own(path):
        raise ExportError(f"{path} is a file of a run itself; choose another name")
    if path.exists() and not overwrite:
        raise ExportError(f"{path} exists already; choose another name, or add --overwrite")


def _about(run: Run, kind: str) -> str:
    data = run.facts["data"]
    if kind == "state_dict":
        return "weight and bias of torch.nn.Linear, on standardised features named in its metadata"
    if kind == "onnx":
        return f"takes {len(run.needed)} features in original units, in its metadata's order"
    units = (
        "units of standardised arrays (each row with mean 0 and deviation 1)"
        if run.standardiser.whole_rows
        else "units of a site's harmonised rows"
        if run.settings.harmonise is not None
        else "original units"
    )
    scale = (
        "log-odds of each label"
        if data["outcome"] == "multilabel"
        else f"log-odds of {data['classes'][1]}"
        if len(data["classes"]) == 2
        else "scores"
        if data["classes"]
        else f"the logarithm of {data['target']}"
        if is_count(data["outcome"])
        else f"the logarithm of the relative risk of {data['target']}"
        if data["outcome"] == "survival"
        else data["target"]
    )
    return f"intercept and coefficients for {scale}, in {units}"


def original_units(run: Run) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Return (features, coefficients [K, n], intercepts [K]) on rows not centred or scaled.

    ``w_j = t w'_j / s_j`` and ``b = t (b' - Σ w'_j m_j / s_j) + t_0``, with m, s the features' mean
    and scale, t and t_0 the target's; with a logarithmic link t is 1 and t_0 the logarithm of the
    target's scale. Rows of an array must be standardised over themselves first.
    """
    full, weight, used = run.standardiser, run.slopes.double(), run.used
    scale, mean = full.scale[used], full.mean[used]
    slopes = per_unit(weight[:, used], scale)
    centre = mean if full.how != "none" else torch.zeros_like(mean)
    intercept = run.params["bias"].double() - slopes @ centre
    names = tuple(name for name, use in zip(full.features, used.tolist(), strict=True) if use)
    if is_count(run.facts["data"]["outcome"]):
        return names, slopes, intercept + math.log(full.target_scale)
    return names, full.target_scale * slopes, full.target_scale * intercept + full.target_mean


def coefficients(run: Run) -> str:
    """Return a CSV table of coefficients, the intercept first."""
    names, slopes, intercepts = original_units(run)
    classes = run.facts["data"]["classes"]
    several = len(classes) > 2 or run.facts["data"]["outcome"] == "multilabel"
    heads = [f"coefficient_{name}" for name in classes] if several else ["coefficient"]
    described = {f.name: f.description for f in run.features}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["feature", *heads, "description"])
    writer.writerow(["(intercept)", *(repr(value) for value in intercepts.tolist()), ""])
    for name, column in zip(names, slopes.T.tolist(), strict=True):
        writer.writerow([name, *(repr(value) for value in column), described.get(name, "")])
    return text.getvalue()


def state_dict(run: Run) -> bytes:
    """Return a safetensors file with the state of ``torch.nn.Linear``."""
    meta = {"features": list(run.standardiser.features), "classes": run.facts["data"]["classes"]}
    tensors = {name: value.contiguous() for name, value in run.params.items()}
    return save(tensors, {KEY: json.dumps(meta, sort_keys=True)})


class LinearModule(nn.Module):
    """Rows in original units to probabilities, or to values in the target's units."""

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(
        self, standardiser: Standardiser, weight: Tensor, bias: Tensor, outcome: str
    ) -> None:
        super().__init__()
        self.how, self.outcome = standardiser.how, outcome
        self.whole_rows = standardiser.whole_rows
        self.n_candidates = standardiser.n_candidates
        self.target = (standardiser.target_scale, standardiser.target_mean)
        known = standardiser.scale > 0
        inverse = torch.where(known, 1.0 / torch.where(known, standardiser.scale, 1.0), 0.0)
        self.register_buffer("mean", standardiser.mean)
        self.register_buffer("scale", inverse)
        self.register_buffer("weight", weight.double())
        self.register_buffer("bias", bias.double())

    def forward(self, x: Tensor) -> Tensor:
        """Return [n, K] from [n, d]."""
        rows = x.double()
        if self.whole_rows:
            own, rest = rows[:, : self.n_candidates], rows[:, self.n_candidates :]
            own = own - own.mean(1, keepdim=True)
            own = own / (own.square().sum(1, keepdim=True) / (own.shape[1] - 1)).sqrt()
            rows = torch.cat([own, rest], 1)
        if self.how != "none":
            rows = (rows - self.mean) * self.scale
        output = rows @ self.weight.T + self.bias
        if self.outcome == "multilabel":
            return torch.sigmoid(output).float()
        if not has_classes(self.outcome):
            values = output if self.outcome == "regression" else torch.exp(output)
            return (values * self.target[0] + self.target[1]).float()
        if self.outcome == "binary":
            return torch.cat([torch.sigmoid(-output), torch.sigmoid(output)], 1).float()
        return torch.softmax(output, 1).float()


def write_onnx(run: Run, path: Path) -> None:
    """Write the model with its standardisation as ONNX."""
    if run.settings.harmonise is not None:
        msg = "a harmonised fit needs all rows of a site, ONNX has one at a time; use predict"
        raise ExportError(msg)
    try:
        import onnx
        import onnxscript  # noqa: F401  torch.onnx needs it
    except ImportError as error:
        raise ExportError("ONNX needs two more packages: pip install 'fedsift[export]'") from error
    data = run.facts["data"]
    module = LinearModule(*run.compact(), data["outcome"]).eval()
    rows = torch.randn(2, len(run.needed), dtype=torch.float32)
    log = logging.getLogger("torch.onnx")  # it speaks of packages that nobody needs here
    level = log.level
    log.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (rows,),
            input_names=["x"],
            output_names=["probabilities" if data["classes"] else "value"],
            dynamic_shapes={"x": {0: torch.export.Dim("rows")}},
            dynamo=True,
            verbose=False,
        )
    log.setLevel(level)
    assert program is not None  # noqa: S101  it is None for the older exporter only
    model = program.model_proto
    meta = {"features": list(run.needed), "classes": data["classes"], "target": data["target"]}
    onnx.helper.set_model_props(model, {name: json.dumps(value) for name, value in meta.items()})
    onnx.checker.check_model(model)
    write_atomic(path, model.SerializeToString())
