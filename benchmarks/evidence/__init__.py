"""Real eviction policies on real language models: quality, and the memory that comes back."""
