"""Distributed training by the protocol of scikit-learn's estimators, which is not needed for it."""
