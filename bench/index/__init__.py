"""How fast the global block index takes what engines tell it, and places branches by it."""
