"""A site: it answers the server's questions about rows that it alone sees."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedsift import decoys, messages, trees
from fedsift.algorithms.base import Own
from fedsift.data import DataError, FederatedData, Standardiser, of_role, with_roles
from fedsift.data.errors import NamesError
from fedsift.data.paths import site_name
from fedsift.data.remote import Step, block_counts
from fedsift.data.splitting import in_test, strata_counts
from fedsift.data.standardise import site_sums
from fedsift.engines.flower.limits import Limit, keep_answer, kept_answer, name_of
from fedsift.engines.flower.memory import Exchanges, LostError, Memory
from fedsift.engines.flower.parts import (
    CLASSES,
    Part,
    PartError,
    define,
    tensors_of,
    with_tensors,
)
from fedsift.engines.flower.work import SiteWork
from fedsift.evaluation import measure_sums, site_hazards
from fedsift.forgetting import median_margin, remade
from fedsift.inference import site_scores
from fedsift.problems import Problem
from fedsift.trees import Tree

log = logging.getLogger(__name__)

Problems = Callable[[Mapping[str, Any]], Problem]


@dataclass
class Site:
    """One site's part of a run.

    Attributes:
        data: its rows, one site.
        memory: what it keeps of the run.
        problems: makes a problem that the server described and that is made of no other.
        classes: the algorithms and channels that the server may name.
        limit: what it tells at most; None: whatever is asked.
    """

    data: FederatedData
    memory: Memory
    problems: Problems
    classes: Mapping[str, type] = field(default_factory=lambda: CLASSES)
    limit: Limit | None = None
    _meant: dict[tuple[str, ...], FederatedData] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The site's name."""
        return self.data.sites[0]

    def answer(self, part: Part) -> Part:
        """Answer a question.

        An answer never quotes a row: an unforeseen error stays in the site's log, and the server
        hears its kind.
        """
        kind = str(part.facts.get("kind"))
        questions: dict[str, Callable[[Part], Part]] = {
            "define": self._define,
            "counts": self._counts,
            "strata": self._strata,
            "sums": self._sums,
            "moments": self._moments,
            "margin": self._margin,
            "hazard": self._hazard,
            "scores": self._scores,
            "evaluate": self._evaluate,
            "keep": self._keep,
            "exchange": self._exchange,
            "end": self._end,
        }
        try:
            if self.limit is not None:
                self.limit.admit(kind)
            return questions.get(kind, _unknown)(part)
        except LostError as error:
            return Part({"kind": kind, "lost": str(error)})
        except NamesError as error:
            return Part({"kind": kind, "refused": str(error)})
        except (PartError, messages.MessageError) as error:
            return Part({"kind": kind, "error": str(error)})
        except Exception as error:
            log.exception("site %r cannot answer %r", self.name, kind)
            reason = f"{type(error).__name__}; the log of its SuperNode says more"
            return Part({"kind": kind, "error": reason})

    def rows(self, steps: list[str]) -> FederatedData:
        """Return the rows that are meant: its own after these steps."""
        keys = tuple(steps)
        if not keys:
            return self.data
        if keys not in self._meant:
            tensors, facts = self.memory.definition(keys[-1])
            if self.limit is not None:
                self.limit.admit_step(facts["kind"])
            before = self.rows(steps[:-1])
            self._meant[keys] = taken(before, Step(facts["kind"], facts["facts"], tensors))
        return self._meant[keys]

    def _define(self, part: Part) -> Part:
        self.memory.define(str(part.facts["key"]), part.blobs[0])
        return Part({"kind": "define"})

    def _counts(self, part: Part) -> Part:
        """Say how many rows of each class and role there are, and what they weigh."""
        try:
            data = self.rows(part.facts["data"])
        except NoRowsError:
            nothing = torch.zeros(1, dtype=torch.int64)
            return with_tensors({"kind": "counts"}, {"rows": nothing, "weight": nothing.double()})
        if self.limit is not None:
            return with_tensors({"kind": "counts"}, self.limit.counts(data.n_samples))
        return with_tensors({"kind": "counts"}, block_counts(data, slice(None)))

    def _strata(self, part: Part) -> Part:
        counts = strata_counts(self.rows(part.facts["data"]))
        return with_tensors({"kind": "strata"}, {"ids": torch.tensor(counts)})

    def _sums(self, part: Part) -> Part:
        facts = part.facts
        around = tensors_of(part) or None
        sums = site_sums(self.rows(facts["data"]), facts["how"], facts["fills"], around)
        return with_tensors({"kind": "sums"}, sums)

    def _moments(self, part: Part) -> Part:
        """Say the sums over pairs of features that decoys are made by."""
        scale = tensors_of(part).get("scale")
        moments = decoys.site_moments(self.rows(part.facts["data"]), scale)
        return with_tensors({"kind": "moments"}, moments)

    def _margin(self, part: Part) -> Part:
        """Say how sure the model is of the rows: the median of their margins."""
        data, problem = self.rows(part.facts["data"]), self._problem(part.facts["problem"])
        margin = median_margin(problem, tensors_of(part), data.x)
        return with_tensors({"kind": "margin"}, {"margin": margin})

    def _hazard(self, part: Part) -> Part:
        """Say the cumulative baseline hazard at the times that were agreed on."""
        data, problem = self.rows(part.facts["data"]), self._problem(part.facts["problem"])
        hazard = site_hazards(problem, tensors_of(part), data, part.facts["times"])[0]
        return with_tensors({"kind": "hazard"}, {"hazard": hazard})

    def _scores(self, part: Part) -> Part:
        """Say the sums that intervals are made of."""
        data, tensors = self.rows(part.facts["data"]), tensors_of(part)
        constants, inverse = part.facts["constants"], tensors.get("inverse")
        sums = site_scores(data, constants, tensors["params"], inverse)
        return with_tensors({"kind": "scores"}, sums)

    def _evaluate(self, part: Part) -> Part:
        """Say the sums of the measures of each seed's parameters over the rows."""
        data, problem = self.rows(part.facts["data"]), self._problem(part.facts["problem"])
        schema = problem.init(torch.zeros((), dtype=torch.int64))
        seeds = [messages.decode(blob, schema) for blob in part.blobs]
        params = {name: torch.stack([seed[name] for seed in seeds]) for name in schema}
        params |= self._own_values(part, params)
        sums = measure_sums(problem, params, data)
        pairs = {
            name: torch.stack([total, weight.expand_as(total)])
            for name, (total, weight) in sums.items()
        }
        return with_tensors({"kind": "evaluate"}, pairs)

    def _own_values(self, part: Part, shared: Tree) -> Tree:
        """Return the values of its own that a question is about, or the shared ones.

        These count for seeds that the site has not trained, or whose state it has lost.
        """
        if part.facts.get("own") is None:
            return {}
        try:
            values, trained = self._own(part)
        except LostError as error:
            log.warning("site %r has lost %s; the common value counts", self.name, error)
            return {}
        common = {leaf: shared[leaf] for leaf in values}
        chosen: Tree = trees.where(trained > 0, values, common)
        return chosen

    def _own(self, part: Part) -> Own:
        there = part.facts["own"]
        work, exchanges, _ = self._work(there)
        return work.own(exchanges, there["seeds"], there["last"])

    def _keep(self, part: Part) -> Part:
        """Keep its own values, of the first seed of the question, beyond the end of the run."""
        values, trained = self._own(part)
        if kept := bool(trained[0] > 0):
            file = self.memory.leave(self.name, trees.unstack(values, 0))
            log.info("site %r keeps its own values in %s", self.name, file)
        return Part({"kind": "keep", "kept": kept})

    def _exchange(self, part: Part) -> Part:
        work, exchanges, lane = self._work(part.facts)
        if self.limit is None:
            return work.exchange(part, exchanges)
        file, name = self.memory.folder / f"{lane}-answer.safetensors", name_of(part)
        answer = kept_answer(file, name)
        if answer is None:
            answer = work.exchange(part, exchanges)
            self.limit.charge(work.job.privacy, work.releases(part))
            keep_answer(file, name, answer)
        return answer

    def _work(self, told: Mapping[str, Any]) -> tuple[SiteWork, Exchanges, str]:
        """Return the work on the data that are named, its states here, and the key of both."""
        _, facts = self.memory.definition(told["work"])
        data, problem = self.rows(told["data"]), self._problem(facts["problem"])
        work = SiteWork.described(facts, data, problem, self.classes)
        lane = define({"work": told["work"], "data": told["data"]}).key
        return work, self.memory.exchanges(lane), lane

    def _problem(self, recipe: Mapping[str, Any]) -> Problem:
        return remade(recipe, self.problems)

    def _end(self, _: Part) -> Part:
        """Remove what was kept of the run."""
        self.memory.remove()
        return Part({"kind": "end"})


def _unknown(part: Part) -> Part:
    msg = f"no question of the kind {part.facts.get('kind')!r} is known here"
    raise PartError(msg)


class NoRowsError(DataError):
    """A site has no row in the part of the data that is meant."""


def taken(data: FederatedData, step: Step) -> FederatedData:  # noqa: PLR0911  one a kind
    """Return a site's rows after a step.

    Raises:
        NoRowsError: none is left.
    """
    facts = step.facts
    if step.kind == "select":
        return data.select_features(step.tensors["columns"])
    if step.kind == "harmonise":
        return data.harmonised(facts["how"])
    if step.kind == "standardise":
        stored = {**facts, "features": data.features, "mean": [], "scale": [], "covariates": []}
        return replace(
            Standardiser.from_dict(stored),
            mean=step.tensors["mean"],
            scale=step.tensors["scale"],
            covariates=data.covariates,
        ).apply(data)
    if step.kind == "split":
        before = facts["by_site"][data.sites[0]]
        test = in_test(data, facts["seed"], facts["fraction"], facts["totals"], before)
        chosen = test if facts["test"] else ~test
        if not chosen.any():
            raise NoRowsError(f"site '{data.sites[0]}' has no row in this part")
        return data.take(torch.from_numpy(chosen))
    if step.kind == "roles":
        name = data.sites[0]
        own = facts["by_site"][name]
        return with_roles(data, {name: own["forget"]}, {name: own["held_out"]})
    if step.kind == "decoys":
        made = decoys.Decoys(facts["how"], facts["seed"], step.tensors)
        return decoys.join(data, made)
    if step.kind == "role":
        return of_role(data, facts["role"])
    msg = f"no step of the kind {step.kind!r} is known here"
    raise PartError(msg)


def folder_beside(file: Path) -> Path:
    """Return where a site's state lies by default: beside its file."""
    return file.with_name(f"{site_name(file)}.fedsift")
