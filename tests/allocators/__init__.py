"""The block allocators of real servers: loaders, scenarios, and what they answered."""
