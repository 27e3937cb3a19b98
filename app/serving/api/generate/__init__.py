"""Token in, token out: render, generate and abort."""
