"""As for the tests of models: the devices are set before the first operation."""

from tests.models.conftest import devices  # noqa: F401
