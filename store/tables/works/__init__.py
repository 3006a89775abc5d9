"""Works as this daemon knows them."""
