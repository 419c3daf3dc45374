"""What an optimizer has to be, for an accountant to believe that its releases are M2's.

The marker stands here, below both sides: the training adapter makes such optimizers, and the accountants that listen to
optimizers look for it. Neither has to import the other, and neither torch nor Opacus is needed.
"""

from privproj.mechanisms.m2 import M2


class ReleasesProjection:
    """What an optimizer must be to be accounted as M2: it has a ``release``, the mechanism without its noise."""

    release: M2
