"""Privacy: the clip, the noise, what is sent, and what the algorithm sees."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from fedsift import random, trees
from fedsift.algorithms import FedAvg
from fedsift.channels import TopM
from fedsift.engines.base import site_data
from fedsift.privacy import Guard, Privacy, clipped
from fedsift.training import train
from tests.laws import ENGINES, KEPT, job, largest_gap, linear_problem, proceed, rows
from tests.private import DELTA, METHODS, PAIRED, SAMPLE, SITE, STEP, fitted, lane, told

SILENT = 1e-9  # of a noise that changes nothing
SECRET = torch.arange(8, dtype=torch.int32)


# --- the clip


LENGTHS = st.floats(allow_nan=True, allow_infinity=True, width=64)


@given(st.lists(LENGTHS, min_size=1, max_size=9), st.floats(1e-6, 1e6))
@example([1.7976931346110382e308], 1e-6)
def test_no_vector_is_longer_than_the_clip(values, clip):
    tree = {"a": torch.tensor(values[:4], dtype=torch.float64)}
    tree["b"] = torch.tensor(values[4:], dtype=torch.float64)
    vector = clipped(tree, clip)
    assert torch.isfinite(vector).all()
    assert float(torch.linalg.vector_norm(vector)) <= clip


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=9))
def test_a_short_vector_stays_and_a_long_one_keeps_its_direction(values):
    vector = torch.tensor(values, dtype=torch.float64)
    length = float(torch.linalg.vector_norm(vector))
    assert (clipped({"a": vector}, 3.0 + length) - vector).abs().max() < 1e-11
    if length > 1e-3:
        short = clipped({"a": vector}, 0.5 * length)
        assert (short - 0.5 * vector).abs().max() < 1e-9


# --- the noise


def test_a_message_has_the_noise_that_is_said():
    data = replace(rows("binary", d=4000), weight=torch.ones(32))
    zero = replace(data, x=torch.zeros_like(data.x), y=torch.zeros_like(data.y))
    privacy = Privacy(clip=1e-6, noise=3e6, delta=DELTA)
    for c in (0, 3):
        sent = told(privacy, zero, METHODS["fedavg"], c).sent["loss"][0]["theta/weight"]
        assert float(sent.std()) == pytest.approx(3.0, abs=5 * 3.0 / (2 * 4000) ** 0.5)
        assert abs(float(sent.mean())) < 5 * 3.0 / 4000**0.5


def test_a_sum_of_row_gradients_has_the_noise_that_is_said():
    """σC on the sum of 14 rows is σC/14 on their mean; two calls have noise of their own."""
    data = rows("binary", d=4000)
    site = site_data(
        [table[10:24] for table in (data.x, data.y, data.weight)], torch.ones(()), lane()
    )
    guard = Guard(Privacy(clip=1e-6, noise=3e6, delta=DELTA, level="sample"), SECRET, lane())
    problem, blank = guard.rows(linear_problem(data), site)
    params = problem.init(lane())
    first, second = (
        problem.operators["loss"](params, blank.batch(0, None, lane()))["weight"] for _ in range(2)
    )
    for mean in (first, second, (first - second) / 2**0.5):
        assert float(mean.std()) == pytest.approx(3.0 / 14, abs=5 * 0.22 / (2 * 4000) ** 0.5)
    assert guard.releases == 2


def test_sites_rounds_seeds_and_runs_have_noise_of_their_own():
    data = rows("binary")
    still = replace(data, x=torch.zeros_like(data.x))
    seen: list[Tensor] = []

    def tamper(tick: int, seed: Tensor, site: Tensor, sent: Any) -> Any:
        seen.extend(sent["loss"][0]["theta/weight"].reshape(-1, 12))
        return sent

    knobs: dict[str, Any] = {"seeds": (0, 1), "rounds": 3, "weights": "uniform"}
    for _ in range(2):
        train(
            linear_problem(still), still, METHODS["fedavg"], privacy=SITE, tampering=tamper, **knobs
        )
    messages = torch.stack(seen)
    assert len(messages) == 2 * 2 * 3 * 5
    assert len(messages.flatten().unique()) == messages.numel()


def test_the_noise_is_not_that_of_the_published_seeds():
    one, other = (fitted(METHODS["fedavg"], SITE) for _ in range(2))
    assert largest_gap(one.params, other.params) > 0
    known = [fitted(METHODS["fedavg"], SITE, noise_seed=3).params for _ in range(2)]
    assert largest_gap(*known) == 0
    assert "secret" not in repr(one.job)


@pytest.mark.parametrize("level", ["site", "sample"])
@pytest.mark.parametrize(("method", "channel"), PAIRED)
def test_the_engines_agree(method, channel, level):
    chosen = METHODS[method]
    data = rows("binary")
    ends = []
    for engine in ENGINES.values():
        asked = job(
            linear_problem(data, torch.float64),
            data,
            chosen,
            channel,
            seeds=(0, 1),
            weights="uniform",
            privacy=replace(SITE, level=level),
            secret=SECRET,
        )
        carried, sent = proceed(asked, engine(), 3, 0.5)
        ends.append((carried.server, sent))
    assert largest_gap(ends[0][0], ends[1][0]) < 1e-5
    assert torch.equal(ends[0][1], ends[1][1])


# --- what is sent


def upload(problem: Any, seed: int) -> Any:
    draw = random.normal(random.key("upload", seed), (2, 12))
    return {
        "theta/weight": draw[:1],
        "theta/bias": draw[1, :1],
        "phi": draw[1],
        "inverse_step": draw[0, 0],
    }


@pytest.mark.parametrize("channel", [TopM(KEPT), TopM(KEPT, one_index_set=True)])
def test_what_is_not_chosen_is_late_and_only_the_clip_is_lost(channel):
    """Sent + rest = clip(upload + rest before) + the noise of what was sent."""
    problem = linear_problem(rows("binary"))
    rest = channel.init(problem, upload(problem, 0))
    guard = Guard(replace(SITE, noise=0.05), SECRET, lane())
    protect = guard.message(frozenset({"inverse_step"}))
    assert protect is not None
    for seed in range(20):
        seen: list[Any] = []
        given = upload(problem, seed)

        def spied(tree, seen=seen):
            seen[:] = tree, *protect(tree)
            return seen[1:]

        sent, after = channel.send(problem, rest, given, spied)
        whole, clean, noisy = seen
        assert largest_gap(whole["phi"], given["phi"] + rest["phi"]) == 0
        assert sent["inverse_step"] == given["inverse_step"]
        assert largest_gap(sent["theta/bias"], noisy["theta/bias"]) == 0
        for name in rest:
            chosen = sent[name] != 0
            assert int(chosen.sum()) == KEPT
            assert torch.equal(sent[name][chosen], noisy[name][chosen])
            assert (after[name][chosen] == 0).all()
            assert torch.equal(after[name][~chosen], clean[name][~chosen])
            if not channel.one_index_set:
                assert sent[name].abs().amax() == noisy[name].abs().amax()
                assert sent[name][chosen].abs().min() >= noisy[name][~chosen].abs().max()
        rest = after


def test_the_largest_are_those_with_noise():
    """What is chosen of a message of zeros is chance."""
    problem = linear_problem(rows("binary"))
    nothing = trees.zeros_like(upload(problem, 0))
    places = set()
    for seed in range(30):
        guard = Guard(SITE, SECRET, lane(seed))
        sent, _ = TopM(1).send(
            problem, TopM(1).init(problem, nothing), nothing, guard.message(frozenset())
        )
        places.add(int(sent["phi"].abs().argmax()))
    assert len(places) > 5


@pytest.mark.parametrize("method", METHODS)
def test_what_is_sent_in_the_clear_does_not_depend_on_the_rows(method):
    chosen, clear = METHODS[method], METHODS[method].clear_parts()
    seen = []
    for seed, c in ((0, 0), (1, 0), (1, 2), (2, 4)):
        loud = replace(SITE, noise=SILENT, clip=1e6)
        seen.append(told(loud, rows("binary", seed=seed), chosen, c, weights="uniform"))
    for one in seen[1:]:
        tree, weight = one.sent["loss"]
        first, first_weight = seen[0].sent["loss"]
        assert weight == first_weight
        assert not one.info
        for name, value in tree.items():
            assert (name in clear) == torch.equal(value, first[name]) or not value.any()


@pytest.mark.parametrize("method", METHODS)
def test_another_site_changes_a_message_by_two_clips_at_most(method):
    for seed in range(6):
        loud = replace(SITE, noise=SILENT)
        sent = [
            told(loud, rows("binary", seed=s, d=12), METHODS[method], c, weights="uniform").sent[
                "loss"
            ][0]
            for s, c in ((seed, 0), (seed + 9, 2))
        ]
        gap = trees.norm(trees.subtract(*sent))
        assert gap <= 2 * SITE.clip * (1 + 1e-6)


def test_another_row_changes_a_sum_by_two_clips_at_most():
    data = rows("binary")
    problem = linear_problem(data)
    params = {"weight": torch.ones(1, 12), "bias": torch.ones(1)}
    found = []
    for factor in (1.0, -1e30, torch.inf, torch.nan):
        x = data.x[:9].clone()
        x[4] *= factor
        site = site_data([x, data.y[:9], data.weight[:9]], torch.ones(()), lane())
        guard = Guard(replace(SAMPLE, noise=SILENT), SECRET, lane())
        private, blank = guard.rows(problem, site)
        found.append(
            trees.scale(private.operators["loss"](params, blank.batch(0, None, lane())), 9.0)
        )
    for other in found[1:]:
        assert trees.norm(trees.subtract(found[0], other)) <= 2 * SAMPLE.clip * (1 + 1e-6)


def test_a_wide_clip_without_noise_changes_nothing():
    data = rows("binary")
    problem = linear_problem(data, torch.float64)
    for level in ("site", "sample"):
        loud = Privacy(clip=1e6, noise=1e-20, delta=DELTA, level=level)
        for method in METHODS.values():
            asked = job(problem, data, method, weights="uniform")
            plain, _ = proceed(asked, ENGINES["vectorized"](), 3)
            private, _ = proceed(replace(asked, privacy=loud), ENGINES["vectorized"](), 3)
            assert largest_gap(plain.server, private.server) < 1e-5


@dataclass(frozen=True, kw_only=True)
class Curious(FedAvg):
    """Uploads what it finds in the rows."""

    def client_round(self, problem: Any, shared: Any, client: Any, data: Any, *rest: Any) -> Any:
        sent, client, info = super().client_round(problem, shared, client, data, *rest)
        tree, weight = sent["loss"]
        found = {"x": data.x.sum(0), "y": data.y.double().sum().float(), **tree}
        assert problem.row_loss is None
        return {"loss": (found, weight)}, client, info


def test_an_algorithm_sees_blank_rows():
    sent = told(SAMPLE, rows("binary"), Curious(**STEP), 0).sent["loss"][0]
    assert not sent["x"].any()
    assert not sent["y"].any()
