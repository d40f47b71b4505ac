"""Research tooling of this repository: the registry of numbers, the papers' claims, costs of search, and the published training code's oddities."""
