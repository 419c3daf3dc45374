from privproj.diagnostics.directions import (
    descent_condition as descent_condition,
    lora_noise as lora_noise,
    mean_misalignment as mean_misalignment,
    preprocessed_misalignment as preprocessed_misalignment,
    preprocessing_gain as preprocessing_gain,
)
