"""Hugging Face's Trainer as an elastic job.

    import elastic_launcher.integrations.transformers as elastic

    job = elastic.init(global_batch_size=256, max_batch_per_gpu=64)
    args = TrainingArguments("out", per_device_train_batch_size=256, num_train_epochs=3)
    trainer = elastic.ElasticTrainer(model, args, job=job, train_dataset=dataset)
    trainer.train()

To transformers each process is alone, and one batch of its loop is one optimizer step of the job: it has the global
batch, whatever the number of ranks.
"""

from elastic_launcher.integrations.transformers.start import init
from elastic_launcher.integrations.transformers.trainer import ElasticTrainer, ElasticTrainerMixin

__all__ = ["ElasticTrainer", "ElasticTrainerMixin", "init"]
