"""The adjusted loss in Hugging Face's Trainer: one call after it is made; the model and data stay as they are.

    pip install transformers accelerate
    python examples/with_hugging_face.py

Nothing is downloaded: a small, untrained BERT learns which of five words a sentence holds, two of them rare. Lines
that are new end in "# new"; the call counts the labels, and sets the loss, the metrics and, for a method that has
one, the sampler. Gradient accumulation and several processes work as they are.
"""

import tempfile

import numpy as np
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from longtail.integrations import apply_method  # new

COUNTS = (800, 400, 200, 25, 8)


def sentences(counts, seed):
    """Random words 10..99, with the class's own word 1 + c at a random place."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    words = generator.integers(10, 100, (len(labels), 12))
    words[np.arange(len(labels)), generator.integers(0, 12, len(labels))] = 1 + labels
    return [{"input_ids": row.tolist(), "labels": int(label)} for row, label in zip(words, labels, strict=True)]


def main():
    set_seed(0)
    size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertForSequenceClassification(BertConfig(vocab_size=100, num_labels=len(COUNTS), **size))
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            num_train_epochs=15,
            learning_rate=3e-3,
            per_device_train_batch_size=32,
            gradient_accumulation_steps=2,
            per_device_eval_batch_size=300,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model, arguments, train_dataset=sentences(COUNTS, 0), eval_dataset=sentences((60,) * 5, 1))
        apply_method(trainer, "logit_adjusted")  # new
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
