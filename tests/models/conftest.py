"""All tests of models run on the devices of the fixture `tf`: once TensorFlow runs, they can no longer be set."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def devices(tf):
    """Before the first operation of any test here, many of which import TensorFlow themselves."""
