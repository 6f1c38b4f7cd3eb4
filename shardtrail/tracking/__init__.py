"""The only part that knows MLflow: training runs, membership of datasets, the model registry.

store.py       the connection: address, quietness, errors, experiments, artifacts
attempts.py    runs that are ended, or continued, whatever killed their process
runs.py        training runs
membership.py  which sample and which raw files lie in which record, once per distinct shard
registry.py    model versions
"""
