"""Training loops of Hugging Face's Accelerate as elastic jobs.

    import elastic_launcher.integrations.accelerate as elastic

    job = elastic.init(global_batch_size=256, max_batch_per_gpu=64)
    accelerator = elastic.ElasticAccelerator(job)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

To Accelerate each process is alone, and accumulates; the job says when the gradient of the global batch is complete.
"""

from elastic_launcher.integrations.accelerate.accelerator import ElasticAccelerator
from elastic_launcher.integrations.hugging_face import init

__all__ = ["ElasticAccelerator", "init"]
