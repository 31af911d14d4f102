"""One small real Ray cluster a module, with fake GPUs; its processes end with it."""

from collections.abc import Iterator

import pytest

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A head with 4 CPUs and 4 (fake) GPUs that this process is connected to; yields its address."""
    context = ray.init(
        address="local",
        num_cpus=4,
        num_gpus=4,
        include_dashboard=False,
        object_store_memory=100 << 20,
        log_to_driver=False,
    )
    yield context.address_info["gcs_address"]
    ray.shutdown()
