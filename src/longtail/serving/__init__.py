"""From a trained model to what runs elsewhere: ONNX, ``torch.export``, and files that hold numbers alone."""

from longtail.serving.estimators import load_estimator, save_estimator
from longtail.serving.heads import load_head, save_head
from longtail.serving.modules import LabelRanking, ThresholdedModel, pad_rows
from longtail.serving.onnx import OnnxModel, export_onnx, export_program, load_onnx, load_program

__all__ = [
    "export_onnx",
    "load_onnx",
    "OnnxModel",
    "export_program",
    "load_program",
    "ThresholdedModel",
    "LabelRanking",
    "pad_rows",
    "save_head",
    "load_head",
    "save_estimator",
    "load_estimator",
]
