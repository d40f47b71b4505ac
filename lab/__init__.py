"""Research tooling of this repository: the registry of numbers, the papers' claims, numbers that must not change, models for the package, and the published training code's oddities."""
