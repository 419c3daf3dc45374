from privproj.diagnostics.alignment import (
    descent_condition as descent_condition,
    mean_misalignment as mean_misalignment,
    preprocessed_misalignment as preprocessed_misalignment,
    preprocessing_gain as preprocessing_gain,
)
from privproj.diagnostics.lora_moments import lora_noise as lora_noise
