"""Federated algorithms, by name."""

from __future__ import annotations

from fedsift.algorithms.base import Algorithm, LocalTraining, Total
from fedsift.algorithms.eflops import EFLoPS
from fedsift.algorithms.eflops_paper import EFLoPSPaper
from fedsift.algorithms.fedavg import FedAvg, FedHT, FedIterHT, Tuning

__all__ = [
    "Algorithm",
    "EFLoPS",
    "EFLoPSPaper",
    "FedAvg",
    "FedHT",
    "FedIterHT",
    "LocalTraining",
    "Total",
    "Tuning",
]
