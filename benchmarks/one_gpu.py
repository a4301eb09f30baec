"""vLLM's ranks on one GPU: for machines with fewer GPUs than ranks. For correctness,
never for speed.

    LLM(..., tensor_parallel_size=2, worker_cls="benchmarks.one_gpu.Rank")

NCCL takes two ranks on one GPU for a mistake, unless they say that they are on
different hosts. They talk through sockets then, and their kernels take turns on the
GPU, milliseconds each. The repository's root must be on PYTHONPATH, as workers import
this file. Imports vLLM.
"""

import os

from vllm.v1.worker.gpu_worker import Worker


class Rank(Worker):
    """A rank on GPU 0."""

    def init_device(self) -> None:
        os.environ["NCCL_HOSTID"] = f"rank-{self.rank}"
        self.local_rank = 0
        super().init_device()


ONE_GPU = {
    "worker_cls": "benchmarks.one_gpu.Rank",
    "distributed_executor_backend": "mp",
    "disable_custom_all_reduce": True,
}
"""Arguments of such an engine."""
