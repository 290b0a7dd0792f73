"""The adjusted loss in Hugging Face's Trainer: pass it as ``compute_loss_func``; the model and data stay as they are.

    pip install transformers accelerate
    python examples/with_hugging_face.py

Nothing is downloaded: a small, untrained BERT learns which of five words a sentence holds, two of them rare.
"""

import tempfile

import numpy as np
import torch

from longtail import ClassPrior, margin_cross_entropy, margins
from longtail.metrics import balanced_accuracy

COUNTS = (800, 400, 200, 25, 8)


def sentences(counts, seed):
    """Random words 10..99, with the class's own word 1 + c at a random place."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(counts)), counts)
    words = generator.integers(10, 100, (len(labels), 12))
    words[np.arange(len(labels)), generator.integers(0, 12, len(labels))] = 1 + labels
    return [{"input_ids": row.tolist(), "labels": int(label)} for row, label in zip(words, labels, strict=True)]


def make_loss(margin):
    """What Trainer takes as ``compute_loss_func``.

    Trainer adds up the gradients of ``gradient_accumulation_steps`` batches and does not divide them. It hands over
    how many labels these batches have together: the loss is the sum over samples divided by that number. A mean
    would make gradients as many times too large as there are batches.
    """

    def compute_loss(outputs, labels, num_items_in_batch=None):
        num_items = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        return margin_cross_entropy(outputs.logits, labels, margin).sum() / num_items

    return compute_loss


def measure(prediction):
    accuracy = balanced_accuracy(torch.tensor(prediction.predictions), torch.tensor(prediction.label_ids))
    return {"balanced_accuracy": float(accuracy)}


def main():
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

    set_seed(0)
    train, test = sentences(COUNTS, 0), sentences((60,) * 5, 1)
    prior = ClassPrior.from_labels([item["labels"] for item in train])
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
        trainer = Trainer(
            model,
            arguments,
            train_dataset=train,
            eval_dataset=test,
            compute_loss_func=make_loss(margins.logit_adjusted(prior)),
            compute_metrics=measure,
        )
        trainer.train()
        print(trainer.evaluate())


if __name__ == "__main__":
    main()
