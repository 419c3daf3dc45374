from privproj.contrib.audit.epsilon_lower import AuditVerdict as AuditVerdict
from privproj.contrib.audit.experiments import (
    LoaderExperiment as LoaderExperiment,
    AuditExperiment as AuditExperiment,
    assess_experiment as assess_experiment,
)
from privproj.contrib.audit.symmetry import (
    SymmetryTest as SymmetryTest,
    asymmetry as asymmetry,
    symmetry_test as symmetry_test,
)
