"""Evidence for verdicts and claims: a plan of experiments, committed rows, work in slices."""
