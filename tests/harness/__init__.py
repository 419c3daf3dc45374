"""Random questions, each judged by an evaluation that shares no code with the package."""
