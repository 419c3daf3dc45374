from privproj.contrib.mixing.mechanism import Mixing as Mixing
from privproj.contrib.mixing.plan import mixing_plan as mixing_plan
