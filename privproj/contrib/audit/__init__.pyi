from privproj.contrib.audit.epsilon_lower import AuditVerdict as AuditVerdict
from privproj.contrib.audit.scenes import (
    LoaderScene as LoaderScene,
    Scene as Scene,
    judge_scene as judge_scene,
)
from privproj.contrib.audit.symmetry import (
    SymmetryTest as SymmetryTest,
    asymmetry as asymmetry,
    symmetry_test as symmetry_test,
)
