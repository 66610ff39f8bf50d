"""The engine both pools share: what models compute, kernels that compute it over a paged cache, the draw."""
