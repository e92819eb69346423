"""The faults of a schedule: drawn from the seed as data, then carried out."""
