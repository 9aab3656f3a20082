from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnn_dist.datasets.options import (
    check_options,
    configure,
    describe_options,
    full_name,
    option,
)
from gnn_dist.errors import DatasetError


@dataclass(frozen=True)
class Toy:
    fixed: str = "kept"
    count: int = option(3, 1, 10)
    share: float = option(0.5, 0, 1)
    flag: bool = option(False)

    def __post_init__(self):
        check_options(self, "toy")


@dataclass(frozen=True)
class Plain:
    fixed: int = 1


def test_values_are_parsed_by_the_type_of_the_default():
    toy = configure(Toy(), "toy", " count = 7 ,share=1e-1,flag=Yes")
    assert toy == Toy(count=7, share=0.1, flag=True)
    assert configure(toy, "toy", "flag=0") == Toy(count=7, share=0.1, flag=False)
    assert configure(toy, "toy", None) is toy


def test_description_and_full_name():
    assert describe_options(Toy()) == "count=3, share=0.5, flag=false"
    assert full_name(Toy(), "toy") == "toy"
    assert full_name(Toy(count=4, flag=True), "toy") == "toy:count=4,flag=true"


@given(st.integers(1, 10), st.sampled_from([0.0, 0.25, 1.0]), st.booleans())
def test_full_name_reads_back(count, share, flag):
    toy = Toy(count=count, share=share, flag=flag)
    _, colon, text = full_name(toy, "toy").partition(":")
    assert configure(Toy(), "toy", text if colon else None) == toy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "options of toy must be written key=value, got ''"),
        ("count", "options of toy must be written key=value, got 'count'"),
        ("cuont=3", "toy has no option 'cuont': did you mean 'count'"),
        ("fixed=3", "toy has no option 'fixed': known: count, flag, share"),
        ("count=3,count=4", "option 'count' of toy must be given once"),
        ("count=2.5", "option 'count' of toy must be an integer in 1..10, got '2.5'"),
        ("count=11", "option 'count' of toy must be an integer in 1..10, got 11"),
        ("share=nan", "option 'share' of toy must be a number in 0..1, got nan"),
        ("share=", "option 'share' of toy must be a number in 0..1, got ''"),
        ("flag=2", "option 'flag' of toy must be true or false, got '2'"),
    ],
)
def test_bad_options_name_option_and_range(text, message):
    with pytest.raises(DatasetError, match=message.replace("(", r"\(")):
        configure(Toy(), "toy", text)


def test_types_are_checked_for_python_callers_too():
    with pytest.raises(DatasetError, match=r"'count' of toy must be an integer .*, got True"):
        Toy(count=True)
    assert Toy(share=1).share == 1


def test_source_without_options_refuses_them():
    with pytest.raises(DatasetError, match="plain has no options, got 'fixed=2'"):
        configure(Plain(), "plain", "fixed=2")
