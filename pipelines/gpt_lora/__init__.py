"""A small GPT-2, fine-tuned with LoRA by Hugging Face's Trainer at a size that changes."""

from .pipeline import gpt_lora

__all__ = ["gpt_lora"]
