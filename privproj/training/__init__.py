"""Train torch models privately (needs the extra ``torch``).

Public names are loaded at their first use, so the command line can list the algorithms without torch.
"""

from privproj.lazy import lazy_names

__getattr__, __dir__ = lazy_names(__name__, extra="torch")
