"""Fine-tunes a small GPT-2 with LoRA by Hugging Face's Trainer; runs alike under python and elastic-launcher."""

import argparse
import os
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2LMHeadModel, TrainingArguments

import elastic_launcher.integrations.transformers as elastic


def main() -> None:
    """Tunes, tests after each epoch, saves the adapter."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    job = elastic.init()  # batch sizes come from the pipeline step
    folder = Path(os.environ["ELASTIC_DATA"])
    rows = torch.load(folder / "rows.pt")
    train, test = ([{"input_ids": row, "labels": row} for row in rows[name]] for name in ("train", "test"))
    lora = LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    model = get_peft_model(GPT2LMHeadModel.from_pretrained(folder / "model"), lora)
    args = TrainingArguments(
        tempfile.mkdtemp(),
        num_train_epochs=epochs,
        learning_rate=0.005,
        logging_strategy="epoch",
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
    )
    trainer = elastic.ElasticTrainer(model, args, job=job, train_dataset=train, eval_dataset=test)
    trainer.train()
    trainer.save_model(os.environ.get("ELASTIC_OUTPUT", "adapter"))


if __name__ == "__main__":
    main()
