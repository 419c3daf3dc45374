from privproj.training.trainer import PrivateTrainer as PrivateTrainer
