"""The modules that audits need, imported where their extras are installed."""

import pytest
from helpers import needs


@pytest.fixture(scope="module")
def release():
    """Return the module that audits the release code."""
    needs("torch", "opacus").set_num_threads(1)
    from privproj.contrib.audit import experiments

    return experiments


@pytest.fixture(scope="module")
def membership(release):
    """Return the module that audits trained models."""
    needs("sklearn")
    from privproj.contrib.audit import membership

    return membership
