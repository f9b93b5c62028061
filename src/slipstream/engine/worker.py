"""The worker that vLLM runs for us on CPU, by dotted path (`worker_cls`)."""

from vllm.v1.worker import cpu_worker

from slipstream.engine.patches import mend_expand_batch_to_tokens, mend_top_k_of_nothing


class CPUWorker(cpu_worker.CPUWorker):
    def init_device(self) -> None:
        mend_expand_batch_to_tokens()
        mend_top_k_of_nothing()
        super().init_device()
