"""One simulated broker group: replicas of the product's own code, and who replaces and changes them."""
