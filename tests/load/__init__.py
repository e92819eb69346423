"""Under load: short versions of the experiments of benchmarks/load that assert bounds, not speeds."""
