"""What an optimizer has to be for an accountant to believe that its releases are those of M2.

The marker stands here, below both sides: the training adapter makes such optimizers, and the accountants that listen to
optimizers look for it. Neither has to import the other, and neither torch nor Opacus is needed.
"""

from privproj.mechanisms.m2 import M2


class ReleasesProjection:
    """Base of an optimizer that is accounted as M2; its ``release`` is the mechanism without a noise multiplier."""

    release: M2
