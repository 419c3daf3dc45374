"""Train torch models privately (needs the extra ``torch``).

The names of the public API are loaded at their first use. Importing the package does not import torch, so the command
line can list the algorithms (:mod:`privproj.training.algorithms`) without torch.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="torch")
