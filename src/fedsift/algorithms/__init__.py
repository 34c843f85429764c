"""Federated algorithms, by name."""

from __future__ import annotations

from fedsift.algorithms.averaging import FPPM, LocalExtraSGD, LocalProximalExtraStep
from fedsift.algorithms.base import Algorithm, LocalTraining, Total
from fedsift.algorithms.eflops import EFLoPS
from fedsift.algorithms.eflops_paper import EFLoPSPaper
from fedsift.algorithms.erasers import FedEraser, ProjectedAscent, StoredFedAvg
from fedsift.algorithms.extragradient import FederatedExtragradient, FedGDAGT, FedOGDA
from fedsift.algorithms.fedavg import FedAvg, FedHT, FedIterHT, Tuning
from fedsift.algorithms.fedprox import FedProx
from fedsift.algorithms.fumegs import FUMEGS
from fedsift.algorithms.lippax import Lippax
from fedsift.algorithms.lippax_literal import LippaxLiteral
from fedsift.algorithms.oneshot import OneShot, SolvedAtSite
from fedsift.algorithms.scaffold import Scaffold

__all__ = [
    "FPPM",
    "FUMEGS",
    "Algorithm",
    "EFLoPS",
    "EFLoPSPaper",
    "FedAvg",
    "FedEraser",
    "FedGDAGT",
    "FedHT",
    "FedIterHT",
    "FedOGDA",
    "FedProx",
    "FederatedExtragradient",
    "Lippax",
    "LippaxLiteral",
    "LocalExtraSGD",
    "LocalProximalExtraStep",
    "LocalTraining",
    "OneShot",
    "ProjectedAscent",
    "Scaffold",
    "SolvedAtSite",
    "StoredFedAvg",
    "Total",
    "Tuning",
]
