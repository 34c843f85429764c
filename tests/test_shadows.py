"""The attack by shadow models, on a federation of clusters."""

from __future__ import annotations

import torch

from fedsift import trees
from fedsift.algorithms import FedAvg
from fedsift.data import FederatedData
from fedsift.data.federated import FORGET, HELD_OUT
from fedsift.experiments.forgetting_cases import make_case
from fedsift.experiments.shadows import train_shadows
from fedsift.experiments.unlearning import compare, summary
from fedsift.training import train
from fedsift.trees import Tree


def test_shadow_models_see_all_other_sites_and_half_of_the_site() -> None:
    case = make_case("clusters", "site", "mlp", None, 0)
    others = case.without_site().n_samples
    sizes: list[int] = []

    def fit(rows: FederatedData, number: int) -> Tree:
        assert rows.role is None
        sizes.append(rows.n_samples - others)
        params: Tree = case.problem.init(torch.tensor(number))
        return params

    attack = train_shadows(case, fit, 4, 0)
    role = case.data.role
    assert role is not None
    members, held_out = int((role == FORGET).sum()), int((role == HELD_OUT).sum())
    assert attack.inside.shape == (4, members + held_out)
    assert int(attack.member.sum()) == members
    assert sizes == (~attack.inside.isnan()).sum(1).tolist()
    assert all(0.3 * len(attack.member) < size < 0.7 * len(attack.member) for size in sizes)


def test_it_finds_members_that_were_memorised() -> None:
    """Trained on the site's rows alone, members are told; a model that saw none tells nothing."""
    case = make_case("clusters", "site", "mlp", None, 0)

    def fit(rows: FederatedData, number: int) -> Tree:
        own = rows.take(rows.site_of_row == rows.sites.index(case.site))
        run = train(
            case.problem, own, FedAvg(rounds=60, local_steps=5, learning_rate=0.5),
            seeds=(number,), evaluate_every=1000, compile=False,
        )  # fmt: skip
        params: Tree = trees.unstack(run.params, 0)
        return params

    attack = train_shadows(case, fit, 4, 0)
    original = fit(case.trained_on(), 99)
    stranger = case.problem.init(torch.tensor(5))
    assert attack.infer(original).auc.value > 0.75
    assert abs(attack.infer(stranger).auc.value - 0.5) < 0.15


def test_only_the_federation_that_is_attacked_has_its_figures() -> None:
    found = {
        f"{name} · seed 0": compare("clusters", "site", "mlp", None, 0, [], 4, shadows=shadows)
        for name, shadows in (("with", 2), ("without", 0))
    }
    rows = summary(found)
    assert [("lira_auc" in row) for row in rows] == [True, True, False, False]
    assert all(0 <= row["lira_auc"] <= 1 for row in rows[:2])
