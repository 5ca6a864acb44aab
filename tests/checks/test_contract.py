"""The contract, on everything that is registered."""

from posbench.checks import contract

test_contract = contract()
