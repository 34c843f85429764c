"""Data: site files, the tensors they become, splits, standardisation, partitions and named sets."""

from fedsift.data.coding import Label, code_target, encode
from fedsift.data.covariates import Covariate
from fedsift.data.dictionary import Dictionary
from fedsift.data.digits import digits5000, digits_test
from fedsift.data.errors import DataError, DataWarning
from fedsift.data.federated import FederatedData, Outcome
from fedsift.data.golub import KNOWN_GENES, golub38, golub72, golub_raw, golub_recipe
from fedsift.data.mapped import MappedWriter, open_mapped, save_mapped
from fedsift.data.named import NAMED
from fedsift.data.partition import affine_shift, dirichlet_counts, dirichlet_labels, iid
from fedsift.data.readers import PredictionTable, from_frame, read_as, read_sites, read_table
from fedsift.data.remote import RemoteData
from fedsift.data.roles import of_role, with_roles
from fedsift.data.splitting import halved, split
from fedsift.data.standardise import How, Standardiser
from fedsift.data.synthetic import SyntheticRegression, synthetic_regression

__all__ = [
    "KNOWN_GENES",
    "NAMED",
    "Covariate",
    "DataError",
    "DataWarning",
    "Dictionary",
    "FederatedData",
    "How",
    "Label",
    "MappedWriter",
    "Outcome",
    "PredictionTable",
    "RemoteData",
    "Standardiser",
    "SyntheticRegression",
    "affine_shift",
    "code_target",
    "digits5000",
    "digits_test",
    "dirichlet_counts",
    "dirichlet_labels",
    "encode",
    "from_frame",
    "golub38",
    "golub72",
    "golub_raw",
    "golub_recipe",
    "halved",
    "iid",
    "of_role",
    "open_mapped",
    "read_as",
    "read_sites",
    "read_table",
    "save_mapped",
    "split",
    "synthetic_regression",
    "with_roles",
]
