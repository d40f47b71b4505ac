"""Research tooling of this repository: the registry of numbers, the papers' claims, numbers that must not change, and models for the package."""
