"""Register the bounds of random clipping."""

BOUNDS = {
    ("jl-clip", "exact"): ("privproj.contrib.jl_clip.exact:EXACT",),
    ("jl-clip", "secret-probes"): ("privproj.contrib.jl_clip.secret:SECRET_PROBES",),
    ("jl-clip", "any-records"): ("privproj.contrib.jl_clip.exact:ANY_RECORDS",),
}

BALL_PROFILES = {("jl-clip", "exact"): "privproj.contrib.jl_clip.proof:ball_profile"}
