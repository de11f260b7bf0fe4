"""Building, timing and checking candidates in processes that can be killed."""
