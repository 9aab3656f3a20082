from dataclasses import MISSING, fields
from pathlib import Path

import pytest

from gnn_dist.errors import ConfigError
from gnn_dist.train import config as config_module
from gnn_dist.train.config import TrainConfig


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 0}, "hidden must be at least 1, got 0: change --hidden"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"dropout": 1.1}, r"dropout must lie in \[0.0, 1.0\]"),
        ({"dropout": float("nan")}, "dropout must lie"),
        ({"lr": 0.0}, "lr must be above 0"),
        ({"lr": float("nan")}, "lr must be above 0"),
        ({"weight_decay": -1.0}, "change --weight-decay"),
        ({"model": "gat", "hidden": 10, "heads": 4}, "heads must divide hidden=10"),
        ({"split": -1}, "split must be at least 0"),
        ({"timeout": 0.0}, "timeout must be above 0 seconds"),
        ({"timeout": float("inf")}, "timeout must be above 0 seconds"),
        ({"seed": 10**30}, "seed must lie in"),
        ({"patience": -1}, "patience must be at least 0"),
        ({"optimizer": "adma"}, "optimizer must be one of adam, adamw, sgd, rmsprop, got 'adma'"),
    ],
)
def test_values_that_cannot_work_name_their_option(change, message):
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**change)


def test_every_field_has_a_default_and_a_line_of_documentation():
    lines = Path(config_module.__file__).read_text().splitlines()
    for field in fields(TrainConfig):
        assert field.default is not MISSING
        [at] = [i for i, line in enumerate(lines) if line.startswith(f"    {field.name}: ")]
        assert lines[at + 1].startswith('    """'), field.name
        assert lines[at + 1].endswith('."""'), field.name


def test_dictionary_round_trip():
    config = TrainConfig(model="gcn", lr=0.5, batch_norm=True)
    assert TrainConfig(**config.to_dict()) == config
